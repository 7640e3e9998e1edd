"""One GGUF model: its header, its bytes and its placement on devices; no code here launches it."""
