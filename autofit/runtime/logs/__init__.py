"""Server logs: lines, runs and the facts in them."""
