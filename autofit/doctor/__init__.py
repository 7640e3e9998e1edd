"""An examination of a machine before a tune: devices, runtimes, and what is missing.

Each finding has a command that repairs it. Reading the machine belongs to `machine/`, printing
to `cli/commands/doctor.py`.
"""
