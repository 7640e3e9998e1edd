"""Answer quality of a KV type or a build: prompts, outputs, divergence, verdict."""
