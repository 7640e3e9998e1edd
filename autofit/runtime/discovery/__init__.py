"""Runtimes on this machine: their programs, dialects, supported settings and devices.

Nothing here loads a model.
"""
