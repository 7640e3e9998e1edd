"""Memory that candidates need: predictions, calibration, fit boundaries, dominance.

Sizes of a model's parts are in `model.sizes`; the memory of this machine is in `machine`.
"""
