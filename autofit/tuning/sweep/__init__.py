"""Nights of measurements against a kept baseline."""
