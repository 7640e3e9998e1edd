@echo off
llama-server.exe -m a.gguf
