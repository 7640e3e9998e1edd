#!/usr/bin/env bash
# What is asked of real cards, each part under its own time limit, none stopping the next.
# Studies, tables and a log come to OUT.
#
#   OUT=DIR CUDA=llama-server [VULKAN=llama-server] PARTS='chat same' [AUTOFIT='python3 -P -m autofit'] \
#       benchmarks/cards/run.sh MODEL CUDA0_MIB [CUDA1_MIB]
#
# Parts, run in the order in which they are named:
#   chat, long, vulkan   a whole tune on the first card
#   two, layouts         a whole tune on both cards; each layout at its own edge, for comparison
#   same, mode           a preset against itself, and load mode none against mmap
#   grid, threads        tables for `replay`: the fit boundary and away from it; fewer threads
#   abort                a launch that loads and dies at its first long prompt
#
# EXTRA are further words for every tune, such as --no-answers for a model of random weights.
# The cards' memory is expected to be held down to what is given, if it is to be held down.
# What other cards do at the same time is kept apart by CUDA_VISIBLE_DEVICES, AUTOFIT_LOCK_DIR
# and taskset.
set -u
model=$1 first=$2 second=${3-}
here=$(dirname "$0")
autofit=${AUTOFIT:-autofit}
python=${PYTHON:-python3}
card=${CARD:-CUDA0} other=${OTHER:-CUDA1}
mkdir -p "$OUT"
exec >>"$OUT/log.txt" 2>&1
began=$(date +%s)

part() { # NAME LIMIT_S COMMAND...: run one part and say what came of it
    local name=$1 limit=$2
    shift 2
    echo "== $name: begins $(($(date +%s) - began)) s since the start"
    timeout -s INT -k 20 "$limit" "$@"
    echo "== $name: exit code $?, $(($(date +%s) - began)) s since the start"
    find "$OUT/$name" -name .reserve -delete -o -name report.html -delete 2>/dev/null
    nvidia-smi --query-gpu=index,memory.free --format=csv,noheader
    nvidia-smi --query-compute-apps=gpu_bus_id,pid,name,used_memory --format=csv,noheader
    pgrep -fa llama-server
}

tune() { # NAME BUDGET_S WORDS...
    local name=$1 budget=$2
    shift 2
    # shellcheck disable=SC2086 # the command is words
    part "$name" $((budget + 120)) $autofit tune "$model" --yes --budget "${budget}s" \
        --study "$OUT/$name" "$@" ${EXTRA-}
}

grid() { # NAME LIMIT_S WORDS...
    local name=$1 limit=$2
    shift 2
    part "$name" $((limit + 60)) "$python" -P "$here/record_grid.py" "$model" --runtime "$CUDA" \
        --seconds "$limit" --study "$OUT/$name" --output "$OUT/$name.csv" "$@"
}

one=(--device "$card=$first")
both=(--device "$card=$first" --device "$other=$second")
fixed='batch=4096 flash_attn=on load_mode=none'
preset=${PRESET:-$OUT/chat/presets/$(basename "$model" .gguf).json}
for name in $PARTS; do
    case $name in
    chat) tune chat "${CHAT_S:-360}" --runtime "$CUDA" "${one[@]}" --workload chat ;;
    long) tune long "${LONG_S:-560}" --runtime "$CUDA" "${one[@]}" --workload long --context 65536 ;;
    two) tune two "${TWO_S:-360}" --runtime "$CUDA" "${both[@]}" --workload chat ;;
    vulkan) # its libraries lie beside it
        LD_LIBRARY_PATH=$(dirname "$VULKAN") tune vulkan "${VULKAN_S:-240}" --runtime "$VULKAN" \
            --device "Vulkan0=$first" --workload chat
        ;;
    layouts)
        grid layouts "${LAYOUTS_S:-150}" "${both[@]}" --prompt 6144 --repeats 2 --requests 2 \
            --grid "layout=balanced,capacity,first_device,single:$card,single:$other n_cpu_moe=fewest+1 ubatch=2048 cache_type=q8_0 $fixed"
        ;;
    same)
        # shellcheck disable=SC2086
        part same 240 $autofit compare "$preset" "$preset" --rounds "${ROUNDS:-5}" --study "$OUT/same"
        ;;
    mode)
        mapped=$OUT/mapped.json
        sed 's/"none"/"mmap"/g' "$preset" >"$mapped"
        # shellcheck disable=SC2086
        part mode 240 $autofit compare "$preset" "$mapped" --rounds "${ROUNDS:-5}" --study "$OUT/mode"
        ;;
    grid)
        grid grid "${GRID_S:-400}" "${one[@]}" --prompt 6144 --repeats 3 \
            --grid "n_cpu_moe=16,17,18,19,20 ubatch=1024,2048 cache_type=f16,q8_0 $fixed" \
            --grid "n_cpu_moe=24,40 ubatch=512,4096 cache_type=f16,q8_0 $fixed" \
            --grid "n_cpu_moe=24,32,40 ubatch=1024,2048 cache_type=f16,q8_0 $fixed"
        ;;
    threads)
        grid threads 90 "${one[@]}" --prompt 1024 --repeats 3 --requests 2 \
            --grid "threads=4,8,12,16 n_cpu_moe=20 ubatch=1024 cache_type=q8_0 $fixed"
        ;;
    abort)
        grid abort 60 "${one[@]}" --prompt 8192 --repeats 1 \
            --grid 'n_cpu_moe=17 ubatch=512 cache_type=f16 batch=2048 flash_attn=on load_mode=none'
        ;;
    *) echo "== $name: no such part" ;;
    esac
done
echo "== all: $(($(date +%s) - began)) s"
