"""Estimates, significance tests and stopping rules: functions of numbers, without launches."""
