"""The display of a run as it goes on: plain lines for a log, a live view on a terminal."""
