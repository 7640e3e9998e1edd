"""GGUF files as bytes and metadata: block types, reading and writing headers."""
