cat > x <<EOF
llama-server
EOF
llama-server -m a.gguf
