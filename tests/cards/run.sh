#!/usr/bin/env bash
# Everything that is asked of real cards, each part under its own time limit, none stopping the
# next. Studies, tables and a log come to OUT; what is too large for a repository stays out.
#
#   OUT=DIR CUDA=llama-server [VULKAN=llama-server] [PARTS='chat long two same mode grid vulkan'] \
#       [AUTOFIT='python3 -P -m autofit'] tests/cards/run.sh MODEL CUDA0_MIB [CUDA1_MIB]
#
# The cards' memory is expected to be held down to what is given, if it is to be held down.
set -u
model=$1 first=$2 second=${3-}
here=$(dirname "$0")
autofit=${AUTOFIT:-autofit}
python=${PYTHON:-python3}
parts=${PARTS:-chat long two same mode grid vulkan}
mkdir -p "$OUT"
exec >"$OUT/log.txt" 2>&1
began=$(date +%s)

part() { # NAME LIMIT_S COMMAND...: run one part and say what came of it
    local name=$1 limit=$2
    shift 2
    case " $parts " in *" $name "*) ;; *) return ;; esac
    timeout -s INT -k 20 "$limit" "$@"
    echo "== $name: exit code $?, $(($(date +%s) - began)) s since the start"
    find "$OUT/$name" -name .reserve -delete -o -name report.html -delete 2>/dev/null
    nvidia-smi --query-gpu=memory.free --format=csv,noheader
    pgrep -fa llama-server && echo "== $name left a server"
}

tune() { # NAME LIMIT_S BUDGET_S WORDS...
    local name=$1 limit=$2 budget=$3
    shift 3
    # shellcheck disable=SC2086 # the command is words
    part "$name" "$limit" $autofit tune "$model" --yes --budget "${budget}s" --study "$OUT/$name" "$@"
}

one=(--device "CUDA0=$first")
tune chat 420 360 --runtime "$CUDA" "${one[@]}" --workload chat
tune long 420 360 --runtime "$CUDA" "${one[@]}" --workload long
if [ -n "$second" ]; then
    tune two 480 420 --runtime "$CUDA" "${one[@]}" --device "CUDA1=$second" --workload chat
fi
preset=$OUT/chat/presets/$(basename "$model" .gguf).json
other=$OUT/mmap.json
sed 's/"load_mode": "none"/"load_mode": "mmap"/; s/"none"/"mmap"/' "$preset" >"$other"
# shellcheck disable=SC2086
part same 200 $autofit compare "$preset" "$preset" --rounds 5 --study "$OUT/same"
# shellcheck disable=SC2086
part mode 200 $autofit compare "$preset" "$other" --rounds 5 --study "$OUT/mode"
part grid 500 "$python" -P "$here/record_grid.py" "$model" --runtime "$CUDA" "${one[@]}" \
    --axis n_cpu_moe=18,20,22,26,32,40 --axis ubatch=512,1024,2048,4096 \
    --axis cache_type=f16,q8_0 --axis batch=4096 --axis flash_attn=on --axis load_mode=none \
    --repeats 2 --seconds 460 --study "$OUT/grid" --output "$OUT/grid.csv"
if [ -n "${VULKAN-}" ]; then
    tune vulkan 300 240 --runtime "$VULKAN" --device "Vulkan0=$first" --workload chat
fi
echo "== all: $(($(date +%s) - began)) s"
