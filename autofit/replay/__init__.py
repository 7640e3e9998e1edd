"""Replays: the search of a tune, answered by a recorded table. No launches, no real machine."""
