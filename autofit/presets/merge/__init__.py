"""Putting a preset into a file that exists; reading and writing whole files is in `formats`."""
