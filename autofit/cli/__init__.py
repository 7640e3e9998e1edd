"""Commands, options and exit codes: wires the parts together."""
