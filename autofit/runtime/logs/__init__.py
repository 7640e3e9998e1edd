"""The reading of a server's log: lines, runs, facts and failure messages.

Conclusions about a launch belong in `runtime/diagnosis`.
"""
