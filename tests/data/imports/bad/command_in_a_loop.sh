for m in a b; do
  llama-server -m $m.gguf
done
