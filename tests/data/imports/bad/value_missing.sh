llama-server -m a.gguf -ngl
