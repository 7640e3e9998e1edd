"""The memory plan of a model on each device; nothing here launches a server."""
