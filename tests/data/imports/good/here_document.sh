cat > x <<EOF
llama-server
EOF
llama-server -m /m/a.gguf
