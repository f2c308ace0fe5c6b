#!/usr/bin/env bash
# The campaign on a real card, one command an item: scripts/campaign.sh N, and `list` says what each does.
# Every item can be broken off: the same command goes on. Results lie in results/campaign/<card>/.
# More words after N go to the item's sweeps: scripts/campaign.sh 3 dry_run=true lists their trials.
# PYTHON: another interpreter. CAMPAIGN_LIMIT_S: after so many seconds an item ends, to go on when asked again.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-}
if [ -z "$python" ]; then
    if [ -x .venv/bin/python ]; then python=.venv/bin/python; else python=python; fi
fi
limit_s=${CAMPAIGN_LIMIT_S:-540}
small=qwen2.5-0.5b
sizes=qwen2.5-0.5b,qwen2.5-1.5b,qwen2.5-3b

list() {
    cat <<'END'
1  facts of the card: names, versions, context, cuBLAS workspace, NVML against mem_get_info
2  allocator truth: a full and a LoRA trial recorded, replayed through the model of the allocator
3  lora_vs_full on the card, then capped to 80, 48, 40, 24 and 16 GiB, as far as the card is bigger
4  the grids num_generations, completion_length, optimizer, logprobs, gradient_checkpointing on 0.5B to 3B
5  rollout=synthetic against rollout=generate, lengths forced and ragged: the peaks side by side
6  cost of looking: step time sampled every 0.01 s, every 0.1 s and not at all; time from command to first step
END
}

item=${1:-}
case $item in
    list)
        list
        exit 0
        ;;
    [1-6]) shift ;;
    *)
        echo "item=${item:-(none)}: must be 1 to 6, or list. scripts/campaign.sh list says what each does." >&2
        exit 2
        ;;
esac
more=("$@")
worst=0

# What an item runs. Interrupted is the end; anything else that fails is kept in mind, and the rest still runs.
run() {
    local left=$((limit_s - SECONDS)) code=0
    if [ "$left" -le 0 ]; then
        code=124
    else
        # --foreground: Ctrl-C reaches the command itself. SIGINT lets a sweep end its workers and keep what is finished.
        timeout --foreground --signal=INT --kill-after=30 "$left" "$python" -m "$@" || code=$?
    fi
    case $code in
        0) ;;
        124 | 137)
            echo "Item $item is not finished after $limit_s s; the same command goes on." >&2
            exit 3
            ;;
        2 | 33 | 34 | 130) exit "$code" ;;
        *) worst=$code ;;
    esac
}

sweep() {
    local grid=$1 folder=$2
    shift 2
    run profiler.sweep "+grid=$grid" backend=cuda "results_dir=$folder" "$@" ${more[@]+"${more[@]}"}
}

card=$("$python" -m profiler.campaign card)
out=results/campaign/$card

case $item in
    1)
        run profiler.campaign facts "$out"
        ;;
    2)
        # A process each: a history has to begin before the first allocation.
        run profiler.campaign allocator_truth full "$out"
        run profiler.campaign allocator_truth lora "$out"
        ;;
    3)
        sweep lora_vs_full "$out" rollout=synthetic steps=3
        for cap in $("$python" -m profiler.campaign caps); do
            # What ran out of memory before implies what would run out now: only where a verdict can change it runs.
            sweep lora_vs_full "$out" rollout=synthetic steps=3 "gpu=$cap"
        done
        ;;
    4)
        sweep logprobs "$out" rollout=synthetic "model=$sizes"
        sweep gradient_checkpointing "$out" rollout=synthetic "model=$sizes"
        sweep optimizer "$out" rollout=synthetic "model=$sizes"
        sweep num_generations "$out" rollout=synthetic "model=$sizes"
        sweep completion_length "$out" rollout=synthetic "model=$sizes"
        ;;
    5)
        sweep logprobs "$out/rollouts" logprobs=fused "model=$small" tuning=full,lora lengths=forced,ragged \
            rollout=generate,synthetic
        run profiler.campaign rollouts "$out/rollouts/logprobs"
        ;;
    6)
        folders=()
        for period in null 0.1 0.01; do
            folder=$out/looking/$period
            if ! compgen -G "$folder/logprobs/records/*.json" > /dev/null; then
                mkdir -p "$folder"
                touch "$folder/command_began"
            fi
            # Three trials alike but for the seed, which changes no memory: the spread of one period's times.
            sweep logprobs "$folder" logprobs=fused "model=$small" rollout=synthetic seed=0,1,2 "sample_period_s=$period"
            folders+=("$folder/logprobs")
        done
        run profiler.campaign looking "${folders[@]}"
        ;;
esac
exit "$worst"
