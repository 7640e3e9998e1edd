"""A runtime as data: flags, endpoints, log lines and failure messages."""
