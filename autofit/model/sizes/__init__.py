"""Bytes of a model: per layer, of the KV cache and of compute buffers."""
