"""Checks of presets: a written file before it replaces another, a preset on this machine.

Nothing here writes presets.
"""
