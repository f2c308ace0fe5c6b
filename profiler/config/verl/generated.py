"""The keys of verl's generated configurations with their defaults: facts, of verl 0.8.0.dev (b178a3c, 2026-01-29).

Source: `verl/trainer/config/_generated_ppo_trainer.yaml` and `_generated_ppo_megatron_trainer.yaml` of
https://github.com/volcengine/verl. Each section is a line in brackets, and below it each key with its default as JSON;
null is also a default that refers to another key. Left out: sections of profilers and of Ray, and names of classes.
"""

import json
from collections.abc import Mapping

VERL_VERSION = "0.8.0.dev"

_BOTH = """
[actor_rollout_ref.actor.optim]
lr 1e-06
lr_warmup_steps_ratio 0.0
total_training_steps -1
weight_decay 0.01
lr_warmup_steps -1
betas [0.9, 0.999]
clip_grad 1.0
[actor_rollout_ref.actor]
rollout_n null
ppo_mini_batch_size 256
ppo_micro_batch_size null
ppo_micro_batch_size_per_gpu null
use_dynamic_bsz false
ppo_max_token_len_per_gpu 16384
clip_ratio 0.2
clip_ratio_low 0.2
clip_ratio_high 0.2
tau_pos 1.0
tau_neg 1.05
freeze_vision_tower false
clip_ratio_c 3.0
loss_agg_mode "token-mean"
loss_scale_factor null
entropy_coeff 0
calculate_entropy false
use_kl_loss false
use_prefix_grouper false
use_torch_compile true
kl_loss_coef 0.001
kl_loss_type "low_var_kl"
ppo_epochs 1
shuffle false
data_loader_seed 42
use_fused_kernels null
[actor_rollout_ref.actor.policy_loss]
loss_mode "vanilla"
clip_cov_ratio 0.0002
clip_cov_lb 1.0
clip_cov_ub 5.0
kl_cov_ratio 0.0002
ppo_kl_coef 0.1
[actor_rollout_ref.actor.checkpoint]
save_contents ["model", "optimizer", "extra"]
load_contents null
async_save false
[actor_rollout_ref.actor.router_replay]
mode "disabled"
record_file null
replay_file null
[actor_rollout_ref.ref]
rollout_n null
use_torch_compile null
log_prob_micro_batch_size null
log_prob_micro_batch_size_per_gpu null
log_prob_use_dynamic_bsz null
log_prob_max_token_len_per_gpu null
[actor_rollout_ref.ref.router_replay]
mode "disabled"
record_file null
replay_file null
[actor_rollout_ref.rollout]
name null
mode "async"
temperature 1.0
top_k -1
top_p 1
prompt_length null
response_length null
dtype "bfloat16"
gpu_memory_utilization 0.5
ignore_eos false
enforce_eager false
cudagraph_capture_sizes null
free_cache_engine true
tensor_model_parallel_size 2
data_parallel_size 1
expert_parallel_size 1
pipeline_model_parallel_size 1
max_num_batched_tokens 8192
max_model_len null
max_num_seqs 256
enable_chunked_prefill true
enable_prefix_caching true
logprobs_mode "processed_logprobs"
scheduling_policy "fcfs"
load_format "dummy"
log_prob_micro_batch_size null
log_prob_micro_batch_size_per_gpu null
log_prob_use_dynamic_bsz null
log_prob_max_token_len_per_gpu null
disable_log_stats true
do_sample true
n 1
over_sample_rate 0
multi_stage_wake_up false
calculate_log_probs false
skip_rollout false
skip_dump_dir "/tmp/rollout_dump"
skip_tokenizer_init true
enable_rollout_routing_replay false
quantization null
quantization_config_file null
mtp null
[actor_rollout_ref.rollout.engine_kwargs]
vllm {}
sglang {}
trtllm {}
[actor_rollout_ref.rollout.val_kwargs]
top_k -1
top_p 1.0
temperature 0
n 1
do_sample false
[actor_rollout_ref.rollout.multi_turn]
enable false
max_assistant_turns null
tool_config_path null
max_user_turns null
max_parallel_calls 1
max_tool_response_length 256
tool_response_truncate_side "middle"
interaction_config_path null
use_inference_chat_template false
tokenization_sanity_check_mode "strict"
format "hermes"
num_repeat_rollouts null
[actor_rollout_ref.rollout.agent]
num_workers 8
default_agent_loop "single_turn_agent"
agent_loop_config_path null
[actor_rollout_ref.rollout.agent.custom_async_server]
path null
name null
[actor_rollout_ref.rollout.checkpoint_engine]
backend "naive"
update_weights_bucket_megabytes 2048
engine_kwargs {}
[actor_rollout_ref.rollout.trace]
backend null
token2text false
max_samples_per_step_per_worker null
[actor_rollout_ref.rollout.prometheus]
enable false
port 9090
file "/tmp/ray/session_latest/metrics/prometheus/prometheus.yml"
served_model_name null
[actor_rollout_ref.model]
path "~/models/deepseek-llm-7b-chat"
hf_config_path null
tokenizer_path null
use_shm false
trust_remote_code false
custom_chat_template null
external_lib null
enable_gradient_checkpointing true
enable_activation_offload false
lora_rank 0
lora_alpha 16
target_modules "all-linear"
exclude_modules null
lora_adapter_path null
use_liger false
use_fused_kernels false
[actor_rollout_ref.model.fused_kernel_options]
impl_backend "torch"
[actor_rollout_ref.model.tiled_mlp]
enabled false
num_shards 4
[actor_rollout_ref.model.mtp]
enable false
enable_train false
enable_rollout false
detach_encoder false
mtp_loss_scaling_factor 0.1
speculative_algorithm "EAGLE"
speculative_num_steps 2
speculative_eagle_topk 2
speculative_num_draft_tokens 4
method "mtp"
num_speculative_tokens 1
[actor_rollout_ref]
hybrid_engine true
nccl_timeout 600
[data]
tokenizer null
use_shm false
train_files "~/data/rlhf/gsm8k/train.parquet"
val_files "~/data/rlhf/gsm8k/test.parquet"
train_max_samples -1
val_max_samples -1
prompt_key "prompt"
reward_fn_key "data_source"
max_prompt_length 512
max_response_length 512
train_batch_size 1024
val_batch_size null
tool_config_path null
return_raw_input_ids false
return_raw_chat true
return_full_prompt false
shuffle true
seed null
dataloader_num_workers 8
image_patch_size 14
validation_shuffle false
filter_overlong_prompts false
filter_overlong_prompts_workers 1
truncation "error"
image_key "images"
video_key "videos"
trust_remote_code false
return_multi_modal_inputs true
apply_chat_template_kwargs {}
[data.custom_cls]
path null
name null
[data.sampler]
class_path null
class_name null
[data.datagen]
path null
name null
[reward_manager]
source "register"
name null
[reward_manager.module]
path null
name "custom_reward_manager"
[critic.optim]
lr 1e-05
lr_warmup_steps_ratio 0.0
total_training_steps -1
weight_decay 0.01
lr_warmup_steps -1
betas [0.9, 0.999]
clip_grad 1.0
[critic.model]
path "~/models/deepseek-llm-7b-chat"
tokenizer_path null
external_lib null
trust_remote_code null
[critic]
rollout_n null
enable null
ppo_mini_batch_size null
ppo_micro_batch_size null
ppo_micro_batch_size_per_gpu null
use_dynamic_bsz null
ppo_max_token_len_per_gpu 32768
forward_max_token_len_per_gpu null
ppo_epochs null
shuffle null
cliprange_value 0.5
loss_agg_mode null
[critic.checkpoint]
save_contents ["model", "optimizer", "extra"]
load_contents null
async_save false
[reward_model]
enable false
enable_resource_pool false
n_gpus_per_node 8
nnodes 0
micro_batch_size null
micro_batch_size_per_gpu null
max_length null
use_dynamic_bsz null
forward_max_token_len_per_gpu null
reward_manager "naive"
reward_loop_source "register"
reward_loop_module_path null
reward_loop_class_name null
launch_reward_fn_async false
use_reward_loop true
num_workers 1
[reward_model.model]
input_tokenizer null
path "~/models/FsfairX-LLaMA3-RM-v0.1"
external_lib null
trust_remote_code false
override_config {}
[reward_model.sandbox_fusion]
url null
max_concurrent 64
memory_limit_mb 1024
[reward_model.rollout]
name null
dtype "bfloat16"
gpu_memory_utilization 0.5
enforce_eager true
cudagraph_capture_sizes null
free_cache_engine true
data_parallel_size 1
expert_parallel_size 1
tensor_model_parallel_size 2
max_num_batched_tokens 8192
max_model_len null
max_num_seqs 1024
load_format "auto"
engine_kwargs {}
limit_images null
enable_chunked_prefill true
enable_prefix_caching true
disable_log_stats true
skip_tokenizer_init false
prompt_length 2048
response_length 2048
[algorithm.rollout_correction]
rollout_is null
rollout_is_threshold 2.0
rollout_rs null
rollout_rs_threshold null
bypass_mode false
loss_type "ppo_clip"
rollout_is_batch_normalize false
[algorithm]
gamma 1.0
lam 1.0
adv_estimator "gae"
norm_adv_by_std_in_grpo true
use_kl_in_reward false
kl_penalty "kl"
use_pf_ppo false
[algorithm.kl_ctrl]
type "fixed"
kl_coef 0.001
horizon 10000
target_kl 0.1
[algorithm.pf_ppo]
reweight_method "pow"
weight_pow 2.0
[custom_reward_function]
path null
name "compute_score"
[trainer]
balance_batch true
total_epochs 30
total_training_steps null
project_name "verl_examples"
experiment_name "gsm8k"
logger ["console", "wandb"]
log_val_generations 0
rollout_data_dir null
nnodes 1
n_gpus_per_node 8
save_freq -1
esi_redundant_time 0
resume_mode "auto"
resume_from_path null
val_before_train true
test_freq -1
critic_warmup 0
default_hdfs_dir null
del_local_ckpt_after_load false
default_local_dir null
max_actor_ckpt_to_keep null
max_critic_ckpt_to_keep null
ray_wait_register_center_timeout 300
device "cuda"
use_legacy_worker_impl "auto"
[transfer_queue]
enable false
"""

_FSDP = """
[actor_rollout_ref.actor.optim]
optimizer "AdamW"
optimizer_impl "torch.optim"
min_lr_ratio 0.0
num_cycles 0.5
lr_scheduler_type "constant"
warmup_style null
override_optimizer_config null
[actor_rollout_ref.actor.fsdp_config.wrap_policy]
min_num_params 0
[actor_rollout_ref.actor.fsdp_config]
param_offload false
optimizer_offload false
offload_policy false
reshard_after_forward true
fsdp_size -1
forward_prefetch false
model_dtype "fp32"
use_orig_params false
seed 42
full_determinism false
ulysses_sequence_parallel_size 1
entropy_from_logits_with_chunking false
use_torch_compile true
entropy_checkpointing false
forward_only false
strategy "fsdp"
dtype "bfloat16"
[actor_rollout_ref.actor]
strategy "fsdp"
grad_clip 1.0
ulysses_sequence_parallel_size 1
entropy_from_logits_with_chunking false
entropy_checkpointing false
use_remove_padding null
calculate_sum_pi_squared false
sum_pi_squared_checkpointing false
[actor_rollout_ref.ref]
strategy null
ulysses_sequence_parallel_size null
entropy_from_logits_with_chunking false
entropy_checkpointing false
[actor_rollout_ref.ref.fsdp_config.wrap_policy]
min_num_params 0
[actor_rollout_ref.ref.fsdp_config]
param_offload false
optimizer_offload false
offload_policy false
reshard_after_forward true
fsdp_size -1
forward_prefetch false
model_dtype "fp32"
use_orig_params false
seed 42
full_determinism false
ulysses_sequence_parallel_size 1
entropy_from_logits_with_chunking false
use_torch_compile true
entropy_checkpointing false
forward_only true
strategy "fsdp"
dtype "bfloat16"
[actor_rollout_ref.rollout]
layered_summon false
[actor_rollout_ref.model]
override_config {}
use_remove_padding true
[critic.optim]
optimizer "AdamW"
optimizer_impl "torch.optim"
min_lr_ratio 0.0
num_cycles 0.5
lr_scheduler_type "constant"
warmup_style null
override_optimizer_config null
[critic.model.fsdp_config.wrap_policy]
min_num_params 0
[critic.model.fsdp_config]
param_offload false
optimizer_offload false
offload_policy false
reshard_after_forward true
fsdp_size -1
forward_prefetch false
model_dtype "fp32"
use_orig_params false
seed 42
full_determinism false
ulysses_sequence_parallel_size 1
entropy_from_logits_with_chunking false
use_torch_compile true
entropy_checkpointing false
forward_only false
strategy "fsdp"
dtype "bfloat16"
[critic.model]
override_config {}
use_shm false
enable_gradient_checkpointing true
enable_activation_offload false
use_remove_padding false
lora_rank 0
lora_alpha 16
target_modules "all-linear"
[critic.model.tiled_mlp]
enabled false
num_shards 4
[critic]
strategy "fsdp"
data_loader_seed 42
forward_micro_batch_size null
forward_micro_batch_size_per_gpu null
ulysses_sequence_parallel_size 1
grad_clip 1.0
[reward_model]
strategy "fsdp"
ulysses_sequence_parallel_size 1
[reward_model.model]
use_shm false
use_remove_padding false
use_fused_kernels null
[reward_model.model.fsdp_config.wrap_policy]
min_num_params 0
[reward_model.model.fsdp_config]
param_offload false
reshard_after_forward true
fsdp_size -1
forward_prefetch false
[trainer]
validation_data_dir null
val_only false
"""

_MEGATRON = """
[actor_rollout_ref.actor.optim]
optimizer "adam"
lr_warmup_init 0.0
lr_decay_steps null
lr_decay_style "constant"
min_lr 0.0
weight_decay_incr_style "constant"
lr_wsd_decay_style "exponential"
lr_wsd_decay_steps null
use_checkpoint_opt_param_scheduler false
override_optimizer_config {}
[actor_rollout_ref.actor.megatron]
param_offload false
grad_offload false
optimizer_offload false
tensor_model_parallel_size 1
expert_model_parallel_size 1
expert_tensor_parallel_size null
pipeline_model_parallel_size 1
virtual_pipeline_model_parallel_size null
context_parallel_size 1
sequence_parallel true
use_distributed_optimizer true
use_dist_checkpointing false
dist_checkpointing_path null
dist_checkpointing_prefix ""
seed 42
override_ddp_config {}
override_mcore_model_config {}
use_mbridge true
vanilla_mbridge true
use_remove_padding true
forward_only false
dtype "bfloat16"
[actor_rollout_ref.actor.megatron.override_transformer_config]
recompute_granularity null
recompute_modules ["core_attn"]
recompute_method null
recompute_num_layers null
attention_backend "flash"
[actor_rollout_ref.actor]
strategy "megatron"
load_weight true
[actor_rollout_ref.ref]
strategy "megatron"
load_weight true
[actor_rollout_ref.ref.megatron]
param_offload null
grad_offload false
optimizer_offload false
tensor_model_parallel_size null
expert_model_parallel_size null
expert_tensor_parallel_size null
pipeline_model_parallel_size null
virtual_pipeline_model_parallel_size null
context_parallel_size null
sequence_parallel true
use_distributed_optimizer true
use_dist_checkpointing false
dist_checkpointing_path null
dist_checkpointing_prefix ""
seed null
override_ddp_config {}
override_transformer_config null
override_mcore_model_config {}
use_mbridge null
vanilla_mbridge null
use_remove_padding null
forward_only true
dtype "bfloat16"
[actor_rollout_ref.rollout.layer_name_map]
qkv_layer_name "qkv"
gate_proj_layer_name "gate_up"
[actor_rollout_ref.model.override_config]
model_config {}
[actor_rollout_ref.model.override_config.moe_config]
freeze_moe_router false
[actor_rollout_ref.model]
use_remove_padding false
[actor_rollout_ref.model.lora]
type "lora"
merge false
rank 0
alpha 32
dropout 0.0
target_modules ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
exclude_modules []
dropout_position "pre"
lora_A_init_method "xavier"
lora_B_init_method "zero"
a2a_experimental false
dtype null
adapter_path null
freeze_vision_model true
freeze_vision_projection true
freeze_language_model true
[critic.optim]
optimizer "adam"
lr_warmup_init 0.0
lr_decay_steps null
lr_decay_style "constant"
min_lr 0.0
weight_decay_incr_style "constant"
lr_wsd_decay_style "exponential"
lr_wsd_decay_steps null
use_checkpoint_opt_param_scheduler false
override_optimizer_config {}
[critic.megatron]
param_offload false
grad_offload false
optimizer_offload false
tensor_model_parallel_size 1
expert_model_parallel_size 1
expert_tensor_parallel_size null
pipeline_model_parallel_size 1
virtual_pipeline_model_parallel_size null
context_parallel_size 1
sequence_parallel true
use_distributed_optimizer true
use_dist_checkpointing false
dist_checkpointing_path null
dist_checkpointing_prefix ""
seed 42
override_ddp_config {}
override_mcore_model_config {}
use_mbridge true
vanilla_mbridge true
use_remove_padding true
forward_only false
dtype "bfloat16"
[critic.megatron.override_transformer_config]
recompute_granularity null
recompute_modules ["core_attn"]
recompute_method null
recompute_num_layers null
attention_backend "flash"
[critic]
strategy "megatron"
data_loader_seed null
nccl_timeout 600
load_weight true
[critic.model.override_config]
model_config {}
[critic.model.override_config.moe_config]
freeze_moe_router false
[critic.model.lora]
type "lora"
rank 0
alpha 32
dropout 0.0
target_modules ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
exclude_modules []
dropout_position "pre"
lora_A_init_method "xavier"
lora_B_init_method "zero"
a2a_experimental false
dtype null
adapter_path null
freeze_vision_model true
freeze_vision_projection true
freeze_language_model true
[reward_model]
strategy "megatron"
nccl_timeout 600
load_weight true
[reward_model.megatron]
param_offload false
tensor_model_parallel_size 1
expert_model_parallel_size 1
expert_tensor_parallel_size null
pipeline_model_parallel_size 1
virtual_pipeline_model_parallel_size null
context_parallel_size 1
sequence_parallel true
use_distributed_optimizer false
use_dist_checkpointing false
dist_checkpointing_path null
dist_checkpointing_prefix ""
seed null
override_transformer_config null
use_mbridge null
vanilla_mbridge null
use_remove_padding null
dtype "bfloat16"
"""


def _read(text: str) -> dict[str, object]:
    found: dict[str, object] = {}
    section = ""
    for line in text.strip().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        else:
            name, _, value = line.partition(" ")
            found[f"{section}.{name}"] = json.loads(value)
    return found


FSDP_DEFAULTS: Mapping[str, object] = {**_read(_BOTH), **_read(_FSDP)}
"""Defaults of `ppo_trainer`, which trains with FSDP."""

MEGATRON_DEFAULTS: Mapping[str, object] = {**_read(_BOTH), **_read(_MEGATRON)}
"""Defaults of `ppo_megatron_trainer`."""
