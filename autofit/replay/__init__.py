"""Run the search on a recorded table instead of a machine."""
