"""A small `config.json` of each known model type, and what transformers says of it."""

import json
from copy import deepcopy
from functools import cache

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from profiler.config.models.architecture import MODEL_TYPES
from profiler.domain.architectures.families import FAMILIES, family_of

LEFT_OUT = Ellipsis
"""In place of a value: the field is not there."""

_BASE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 96,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 16,
}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48}
_LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 8,
    "n_group": 1,
    "topk_group": 1,
}
_LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 8,
    "full_attention_interval": 2,
}
_TOWERS = {
    "qwen2_vl": {"depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 2},
    "qwen2_5_vl": {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "out_hidden_size": 64, "num_heads": 2},
    "qwen3_vl": {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 64,
        "out_hidden_size": 64,
        "num_heads": 2,
        "deepstack_visual_indexes": [0],
        "num_position_embeddings": 16,
    },
}

assert set(_TOWERS) == {name for name, family in FAMILIES.items() if family.tower is not None} <= set(MODEL_TYPES)


def small_config(model_type, **fields):
    """Return a small `config.json` of the type, with `fields` of its decoder in place of the usual ones."""
    decoder = dict(_BASE)
    if model_type in ("qwen2_moe", "qwen3_moe", "olmoe"):
        decoder |= _EXPERTS | {"num_experts": 4}
    if model_type == "glm4_moe":
        decoder |= _EXPERTS | {"n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1}
    if family_of(model_type).layers.has_latent_attention:
        decoder |= _EXPERTS | {"n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, **_LATENT}
    if family_of(model_type).layers.linear_inputs:
        decoder |= {**_LINEAR} if model_type == "qwen3_5_text" else {**_EXPERTS, "num_experts": 4, **_LINEAR}
    if family_of(model_type).defaults.global_head_dim:
        decoder |= {"global_head_dim": 32, "hidden_size_per_layer_input": 0}
    if model_type in ("mixtral", "gpt_oss"):
        decoder |= {"num_local_experts": 4, "num_experts_per_tok": 2}
    if family_of(model_type).checks.sections_fill_head:
        decoder["rope_scaling"] = {"type": "mrope", "mrope_section": [2, 3, 3]}
    decoder = {name: value for name, value in deepcopy(decoder | fields).items() if value is not LEFT_OUT}
    if model_type in _TOWERS:
        return {"model_type": model_type, "text_config": decoder, "vision_config": dict(_TOWERS[model_type])}
    return {"model_type": model_type, **decoder}


def refusal_of_transformers(config, *, tokens=8):
    """Return the error of transformers when it reads `config`, makes the model and trains one step; empty if none."""
    return _refusal(json.dumps(config), tokens)


@cache
def _refusal(text, tokens):
    """Ask transformers; many pairs of values share the config that is right."""
    config = json.loads(text)
    fields = {name: value for name, value in config.items() if name != "model_type"}
    loader = AutoModelForImageTextToText if config["model_type"] in _TOWERS else AutoModelForCausalLM
    try:
        made = AutoConfig.for_model(config["model_type"], **fields)
        # On the CPU: operations on `meta` are Python, and take four times as long as the work of these sizes.
        # Experts are multiplied in one call only in bfloat16; Gemma 2 has no sdpa.
        model = loader.from_config(made, attn_implementation="eager", dtype=torch.bfloat16).train()
        ids = torch.zeros(2, tokens, dtype=torch.long)
        model(input_ids=ids, use_cache=True).logits.sum().backward()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
