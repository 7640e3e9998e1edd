@echo off
rem Starts the model on the first card.
setlocal
cd /d "%~dp0"
set "MODEL=C:\models\a.gguf"
set CTX=16384
set "CUDA_VISIBLE_DEVICES=0"
if not exist "%MODEL%" (
  echo %MODEL% is missing
  pause
  exit /b 1
)
llama-server.exe ^
  -m "%MODEL%" ^
  -ngl 99 --n-cpu-moe 20 ^
  -c %CTX% --host 127.0.0.1 --port 8081 %*
pause
