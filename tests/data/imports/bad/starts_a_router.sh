llama-server --models-preset all.ini
