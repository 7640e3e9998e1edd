"""The live view of a tune on a terminal: what is known, and how it is drawn."""
