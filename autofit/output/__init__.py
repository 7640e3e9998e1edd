"""Presets, reports and the console."""
