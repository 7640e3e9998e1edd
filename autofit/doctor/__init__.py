"""Examine a machine before a tune: devices, runtimes, and what is missing."""
