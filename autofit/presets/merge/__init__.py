"""Put a preset into a file that exists and keep everything else in it."""
