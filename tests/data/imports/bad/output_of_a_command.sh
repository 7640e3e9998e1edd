llama-server -m a.gguf -t $(nproc)
