"""Comparison of two presets or runtimes, not of candidates: the rounds are in `session`."""
