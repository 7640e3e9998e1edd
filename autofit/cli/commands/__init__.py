"""One module per command of `autofit`; each defines `command`."""
