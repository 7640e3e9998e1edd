"""Compare two presets or two runtimes in interleaved rounds. How rounds run is in `session`."""
