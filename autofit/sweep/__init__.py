"""Suites measured every night and judged against a baseline. Their reports are in `output`."""
