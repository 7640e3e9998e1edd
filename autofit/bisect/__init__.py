"""The build that changed something, found in a series of builds with the fewest launches."""
