"""A runtime as data, its devices and abilities, its server, its answers, its failures."""
