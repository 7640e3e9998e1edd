"""Files that a server can be started from; one module for each format."""
