"""Files that a server is started from: read, written, merged and verified."""
