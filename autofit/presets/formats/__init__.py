"""File formats of presets: one module for each, with reading and writing, and the registry."""
