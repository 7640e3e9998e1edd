#!/usr/bin/env bash
cd /models
export CUDA_VISIBLE_DEVICES=0,1
MODEL="big one.gguf"
CONTEXT=${CONTEXT:-32768}
ARGS=(
  -m "$MODEL"       # relative to the folder
  -c "$CONTEXT"
)
ARGS+=(-fa on)
MORE="--jinja --metrics"
echo "starting $MODEL"
GGML_CUDA_NO_PINNED=1 exec numactl --cpunodebind=0 ./llama-server "${ARGS[@]}" $MORE \
  --host 0.0.0.0 --port 8080 "$@" > server.log 2>&1 &
