llama-server -m 'a.gguf -ngl 99
