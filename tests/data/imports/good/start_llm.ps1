# Starts the model on the first card.
param([int]$Port = 8081)
$model = "C:\models\a.gguf"
$env:CUDA_VISIBLE_DEVICES = "0"
$flags = @(
    "-m", $model
    "-ngl", "99", "--n-cpu-moe", "20"
    "-c", 16384
)
Write-Host "Starting $model"
& llama-server.exe @flags `
    --host 127.0.0.1 --port $Port
