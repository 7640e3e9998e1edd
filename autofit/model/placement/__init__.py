"""Layers on devices: where they lie under given settings, and which slices to measure."""
