#!/bin/bash
# GRPO by OpenRLHF on one card: a trainer, a reference model and vLLM, which sleep in turn. It is started by itself, because
# `ray job submit` would hand it to a Ray cluster outside of the emulated cards:
#   python -m profiler.run gpus=1xh100-80gb python=PYTHON bash examples/scripts/openrlhf_grpo.sh
# PYTHON is what `python -m profiler.emulation install requirements=emulated_environments/openrlhf.txt` prints.
# MODEL may be set from outside.
python -m openrlhf.cli.train_ppo_ray \
   --actor.num_nodes 1 --actor.num_gpus_per_node 1 \
   --ref.num_nodes 1 --ref.num_gpus_per_node 1 \
   --vllm.num_engines 1 --vllm.tensor_parallel_size 1 \
   --train.colocate_all --vllm.gpu_memory_utilization 0.5 \
   --vllm.enable_sleep --ds.enable_sleep --vllm.sync_backend nccl --vllm.enforce_eager \
   --actor.model_name_or_path "${MODEL:-Qwen/Qwen2.5-0.5B-Instruct}" \
   --reward.remote_url "$(dirname "$0")/openrlhf_reward.py" \
   --data.prompt_dataset OpenRLHF/prompt-collection-v0.1 --data.input_key prompt --data.apply_chat_template \
   --data.max_len 1024 --rollout.max_new_tokens 256 --data.max_samples 16 \
   --rollout.batch_size 8 --rollout.micro_batch_size 4 --rollout.n_samples_per_prompt 4 \
   --train.batch_size 32 --train.micro_batch_size 4 --train.max_epochs 1 --train.num_episodes 1 \
   --algo.advantage.estimator group_norm --algo.kl.init_coef 1e-3 --algo.kl.use_loss --algo.kl.estimator k3 \
   --ds.zero_stage 3 --ds.param_dtype bf16 --ds.packing_samples --actor.gradient_checkpointing_enable \
   --ckpt.output_dir ./ckpt/grpo
