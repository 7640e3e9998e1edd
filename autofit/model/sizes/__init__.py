"""Bytes of a model: weights, KV cache, compute buffers, and the estimate for a candidate."""
