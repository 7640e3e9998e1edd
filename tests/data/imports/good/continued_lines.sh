#!/bin/bash
# Starts the big model.
set -euo pipefail
llama-server \
  -m "/models/big one.gguf" \
  -ngl 99 -ncmoe 20 \
  -ub 2048 -b 4096   # fast prompts
