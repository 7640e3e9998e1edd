if nvidia-smi; then N=99; else N=0; fi
llama-server -m a.gguf -ngl $N
