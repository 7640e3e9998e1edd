"""Sequential tests, noise and intervals. Pure functions on numbers."""
