llama-server -m /models/a.gguf \
  -ngl 30
