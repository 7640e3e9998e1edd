"""The study folder: write, read, resume, upgrade."""
