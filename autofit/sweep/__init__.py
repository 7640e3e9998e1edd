"""Measure a suite every night and compare it with a kept baseline."""
