"""Rank 0 of two collects a LoRA adapter under FSDP 1 as verl does before it sends it, and counts its tensors."""

import json

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from torch.distributed.fsdp import FullyShardedDataParallel
from transformers import Qwen3Config, Qwen3ForCausalLM
from verl.utils.fsdp_utils import collect_lora_params, get_fsdp_wrap_policy

dist.init_process_group("nccl")
torch.cuda.set_device(0)
config = Qwen3Config(
    num_hidden_layers=2,
    hidden_size=64,
    intermediate_size=128,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    vocab_size=128,
)
model = get_peft_model(Qwen3ForCausalLM(config), LoraConfig(task_type="CAUSAL_LM", r=4, target_modules="all-linear"))
policy = get_fsdp_wrap_policy(model, is_lora=True)
model = FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=0, use_orig_params=False)
print(json.dumps([len(collect_lora_params(model, layered, base_sync_done=True)) for layered in (True, False)]))
