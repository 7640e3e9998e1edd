"""Everything that knows an inference runtime: its options, server, log lines and failures.

The search, trials and statistics do not belong here.
"""
