"""Plain data of a launch: candidate, purpose, outcome, measurement and metrics, without I/O."""
