"""GGUF files: headers read, written, checked and copied."""
