#!/bin/bash
# GRPO by trl with its generation server on a card of its own, as trl's documentation starts both:
#   python -m profiler.run gpus=2xh100-80gb python=PYTHON bash examples/scripts/grpo_server.sh
# PYTHON is what `python -m profiler.emulation install requirements=emulated_environments/trl.txt` prints.
# MODEL, PORT and SERVER_OPTIONS may be set from outside.
MODEL=${MODEL:-Qwen/Qwen2.5-0.5B-Instruct}
PORT=${PORT:-8000}

CUDA_VISIBLE_DEVICES=1 trl vllm-serve --model "$MODEL" --port "$PORT" $SERVER_OPTIONS &
SERVER=$!

CUDA_VISIBLE_DEVICES=0 python "$(dirname "$0")/grpo_server.py" --model "$MODEL" --port "$PORT"
CODE=$?

kill "$SERVER"
wait "$SERVER"
exit "$CODE"
