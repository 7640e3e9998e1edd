llama-server -m $MODEL -ngl 99
