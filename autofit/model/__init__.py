"""One GGUF model: its header, its bytes, its placement on devices; nothing here launches it."""
