"""What is tried and what came of it: pure data and statistics, no I/O."""
