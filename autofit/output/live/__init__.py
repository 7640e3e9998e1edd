"""The display of a running command: plain lines for a log, a live view on a terminal."""
