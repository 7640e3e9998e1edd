"""The command line: parse options, call one job, print its result and return the exit code.

The work of a job belongs to the job's package, and text for people belongs to `output/`.
"""
