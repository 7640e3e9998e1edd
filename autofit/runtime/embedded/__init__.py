"""The xllamacpp package behind the flags of llama-server."""
