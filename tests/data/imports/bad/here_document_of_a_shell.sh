ssh box bash -s <<EOF
llama-server -m a.gguf
EOF
