#!/bin/bash
# GRPO by trl with its generation server on a card of its own, both started as trl's documentation starts them:
#   python -m profiler.run gpus=2xh100-80gb python=PYTHON bash examples/scripts/grpo_server.sh
# PYTHON is what `python -m profiler.emulation install requirements=emulated_environments/trl.txt` prints.
# MODEL, PORT, STEPS, SERVER_OPTIONS, LAUNCHER and TRAINER may be set from outside.
MODEL=${MODEL:-Qwen/Qwen2.5-0.5B-Instruct}
PORT=${PORT:-8000}
JOB="$(dirname "$0")/${TRAINER:-grpo_server.py} --model $MODEL --port $PORT --steps ${STEPS:-2}"

CUDA_VISIBLE_DEVICES=1 trl vllm-serve --model "$MODEL" --port "$PORT" $SERVER_OPTIONS &
CUDA_VISIBLE_DEVICES=0 ${LAUNCHER:-python} $JOB &

wait -n # for the trainer, or for a server that cannot start
CODE=$?
kill $(jobs -p) 2>/dev/null
wait
exit "$CODE"
