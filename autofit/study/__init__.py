"""The study folder: durable files, reading, resuming, and upgrades of old files."""
