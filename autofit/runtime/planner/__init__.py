"""The runtime's own programs that predict memory and measure divergence.

Predictions by arithmetic belong in `autofit/model` and `autofit/memory`.
"""
