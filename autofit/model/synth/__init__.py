"""Models of random weights, written for tests and demonstrations."""
