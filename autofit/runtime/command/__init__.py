"""The command line of a runtime: written from settings, parsed, and redacted.

Starting a command does not belong here.
"""
