docker run -d --rm --gpus all -p 8080:8080 \
  -v /data/models:/models:ro -e LLAMA_ARG_N_GPU_LAYERS=99 \
  ghcr.io/ggml-org/llama.cpp:server-cuda \
  -m /models/a.gguf -c 8192 --port 8080 --host 0.0.0.0
