"""Check that a preset file starts what was meant."""
