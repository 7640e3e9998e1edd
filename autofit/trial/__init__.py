"""Plain data of a launch: candidate, purpose, outcome, measurement and metrics; no I/O."""
