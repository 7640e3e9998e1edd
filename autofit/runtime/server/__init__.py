"""A running server: start, requests, measurements, stop, and the outcome of the launch.

The choice of what to launch does not belong here.
"""
