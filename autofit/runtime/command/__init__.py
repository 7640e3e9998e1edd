"""The command line of a runtime: written from settings and read back."""
