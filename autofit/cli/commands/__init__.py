"""One module per command of `autofit`."""
