"""Estimates, significance tests and stopping rules, as functions of numbers."""
