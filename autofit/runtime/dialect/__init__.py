"""The data that describe a kind of runtime: its flags, endpoints, log lines and failures.

Code that uses the data does not belong here.
"""
