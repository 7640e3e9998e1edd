"""Models with random weights for tests and demonstrations."""
