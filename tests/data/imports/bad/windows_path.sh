llama-server -m C:\models\a.gguf -ngl 9
