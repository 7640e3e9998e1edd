"""A server in a Python process: the xllamacpp package with the flags of llama-server."""
