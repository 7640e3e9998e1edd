"""A running server: start, requests, measurements and stop."""
