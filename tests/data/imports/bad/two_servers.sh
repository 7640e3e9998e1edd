llama-server -m a.gguf
llama-server -m b.gguf
