"""Locate fit boundaries to the layer, both sides proven by launches."""
