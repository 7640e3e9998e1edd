"""Checks of written preset files before they replace other files; nothing here writes presets."""
