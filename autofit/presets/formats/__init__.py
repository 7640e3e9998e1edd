"""One module per file format of presets, for reading and writing."""
