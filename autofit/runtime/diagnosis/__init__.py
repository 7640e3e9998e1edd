"""Conclusions about a server from its log, exit status and memory counters.

Running a server and sending requests do not belong here.
"""
