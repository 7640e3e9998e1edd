"""The command line: parse options, call one job, print its result and return the exit code.

What a job does belongs to its own package; what is printed for people belongs to `output/`.
"""
