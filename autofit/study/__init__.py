"""The study folder: files that no kill loses, reading, resuming, and upgrades of old files."""
