"""Replays of a tune's search on a recorded table, without launches and without a real machine."""
