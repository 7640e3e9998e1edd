"""A GGUF file as bytes per layer; memory per device; layer slices."""
