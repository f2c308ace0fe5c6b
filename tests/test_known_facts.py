"""Facts of kept cards and model families, as the program's functions return them, stay what they were.

A new card or family needs no entry. After a fact was corrected by its source: `python tests/test_known_facts.py`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from profiler.analytical.estimate import estimate as estimated
from profiler.analytical.estimate import phase_instants
from profiler.config.models.architecture import MODEL_TYPES, read_architecture
from profiler.config.trials.specification import parse_point
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.cards.card import cublas_workspace_bytes, cuda_context_bytes
from profiler.domain.cards.gpu import KNOWN_GPUS, ROOFLINES, Chip, Gpu
from profiler.domain.cards.gpu_names import name_card
from profiler.domain.errors import UsageError
from profiler.domain.models.builtin_models import BUILTIN_MODELS, VISION_MODELS
from profiler.emulation.card import card_description

FACTS = Path(__file__).with_name("known_facts.json")

TORCH = ("2.11", "2.12", "2.13", "2.14")
CAPABILITIES = [(major, minor) for major in range(6, 14) for minor in (0, 1, 2, 3, 5, 6, 7, 9)]
OTHER_NAMES = ("gb10", "h100-sxm", "h100-sxm5", "h100-hbm3", "spark", "grace-hopper", "rtx-pro-6000-blackwell", "zzz")

OTHER_TYPES = (
    *("bailing_hybrid", "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "inkling2_text", "inkling_text"),
    *("jamba", "kimi_linear", "lfm2", "lfm2_moe", "mamba", "mamba2", "nemotron_h", "olmo_hybrid", "qwen3_5"),
    *("qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "qwen4_exp", "qwen4_exp_text", "zamba"),
    *("zamba2", "newllm"),
)
"""Model types without a closed form."""

TOWERS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
LEFT_OUT = "(left out)"
BASE = {
    "architectures": ["MForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "vocab_size": 32_000,
}
NEEDED: Mapping[str, Mapping[str, object]] = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "deepseek_v3": {"num_key_value_heads": 32},
    "gemma4_text": {"hidden_size_per_layer_input": 0},
    "helium": {"num_key_value_heads": 32},
    "hunyuan_v1_dense": {"head_dim": 128},
}
"""Fields whose default in transformers fits no model, or not this one."""
VALUES: Mapping[str, tuple[object, ...]] = {
    "num_key_value_heads": (3, 8, None),
    "hidden_size": (4098, 2048, "64"),
    "head_dim": (15, 64, 128, None),
    "hidden_act": ("no_such", None, "relu", "silu"),
    "hidden_activation": ("relu", "gelu_pytorch_tanh"),
    "pad_token_id": (32_000, 1.0, None),
    "attention_dropout": (1.5, "0.1", True, None, 0.1),
    "attention_bias": (True, None),
    "qkv_bias": (True,),
    "initializer_range": (2.0, 1, 0.5),
    "rms_norm_eps": (1, "1e-6", 1e-6),
    "use_cache": (1, False),
    "use_sliding_window": (True,),
    "tie_word_embeddings": (None, True, False),
    "layer_types": (None, ["full_attention"], ["full_attention"] * 4, ["linear_attention"] * 4, "full"),
    "sliding_window": (0, -1, 4, None),
    "max_position_embeddings": (None, 512),
    "vocab_size": (None,),
    "num_attention_heads": (None, 16),
    "num_experts": (None, 1, 4),
    "num_local_experts": (4,),
    "num_experts_per_tok": (None, 1),
    "moe_intermediate_size": (None, 64),
    "shared_expert_intermediate_size": (None, 64),
    "mlp_only_layers": ([], [0]),
    "decoder_sparse_step": (1, 2),
    "mlp_bias": (True,),
    "resid_pdrop": (0.1,),
    "attn_logit_softcapping": (50.0,),
    "final_logit_softcapping": (30.0,),
    "norms_per_layer": (3,),
    "qk_norm": (False, True),
    "is_encoder_decoder": (True,),
    "architectures": ([], ["MForTokenClassification"]),
    "rope_parameters": ([1], None, {"rope_type": "yarn", "rope_theta": 1e4}, {"rope_type": "mrope"}),
    "rope_scaling": (
        "yarn",
        {"rope_type": "no_such"},
        {"rope_type": "yarn"},
        {"rope_type": "yarn", "factor": 4.0},
        {"rope_type": "llama3", "factor": 8.0},
        {"rope_type": "su", "factor": 8.0},
        {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]},
        {"type": "mrope", "mrope_section": [2, 3, 3]},
    ),
}
"""Values of fields that the model types read or refuse in different ways."""

LORA, FULL, QLORA = {"tuning": "lora"}, {"tuning": "full"}, {"tuning": "qlora"}
TRIALS: tuple[Mapping[str, object], ...] = (
    FULL,
    LORA,
    {**LORA, "attn_implementation": "eager", "logprobs": "full"},
    {**QLORA, "gradient_checkpointing": False},
    {**LORA, "lora_target_modules": ["gate_proj", "up_proj", "down_proj"]},
    {**LORA, "lora_target_modules": ["gate_proj", "up_proj", "gate"], "recipe": "sft"},
    {**LORA, "lora_target_modules": ["o_proj", "gate_up_proj"]},
    {**FULL, "rollout": "generate", "use_liger_kernel": True, "gradient_checkpointing": False},
)


def config_of(model_type: str, **fields: object) -> dict[str, object]:
    """Return a `config.json` with the defaults of the type, and with `fields` of its decoder."""
    whole = {**BASE, **NEEDED.get(model_type, {}), **fields}
    decoder = {name: value for name, value in whole.items() if value != LEFT_OUT}
    if model_type in TOWERS:
        return {"model_type": model_type, "text_config": decoder, "vision_config": {"depth": 2}}
    return {"model_type": model_type, **decoder}


def outcome(compute: Callable[[], Any]) -> Any:
    """Return the result as JSON has it, or the first fault without its hint, which may name other families."""
    try:
        return json.loads(json.dumps(compute()))
    except UsageError as error:
        return error.faults[0].problem


def read(config: Mapping[str, object]) -> Any:
    """Return the fields of the architecture that differ from their defaults, or the fault."""
    found = outcome(lambda: asdict(read_architecture(config, model="m")))
    usual = {field.name: field.default for field in fields(Architecture)}
    return {key: value for key, value in found.items() if value != usual[key]} if isinstance(found, dict) else found


def estimate(config: Mapping[str, object], trial: Mapping[str, object]) -> Any:
    """Return the bytes of each phase and of reserved memory, or the fault."""

    def computed() -> list[int]:
        architecture = read_architecture(config, model="m")
        keys = {"backend": "simulated", "model": "m", **trial}
        spec = parse_point(keys, architecture_of=lambda _: architecture)
        found = estimated(spec, architecture)
        return [found.peak_reserved_bytes, *(int(i.total_bytes) for i in phase_instants(spec, architecture).values())]

    return outcome(computed)


def card_facts(gpu: Gpu) -> dict[str, Any]:
    """Return everything that is known of a card."""
    chip, roofline = gpu.chip, ROOFLINES.get(gpu.name)
    return {
        "source": gpu.source,
        "description": card_description(gpu),
        "kernel_family": gpu.kernel_family,
        "flash_attention": chip.has_flash_attention,
        "bfloat16_into_float32": chip.multiplies_bfloat16_into_float32,
        "roofline": None if roofline is None else asdict(roofline),
    }


def capability_facts(capability: tuple[int, int]) -> dict[str, Any]:
    """Return what follows from a compute capability, also from one that no card has."""
    chip = Chip(compute_capability=capability, multiprocessors=1)
    gpu = Gpu(name="other", title="other", memory_bytes=2**30, chip=chip, source="")
    return {
        "context": cuda_context_bytes(capability),
        "description": card_description(gpu),
        "cublas": [cublas_workspace_bytes(capability, version) for version in TORCH],
    }


def values_read(name: str, value: object) -> dict[str, list[str]]:
    """Return how the value of a field is read, as the difference to the default, with the types that read it so."""
    found: dict[str, list[str]] = {}
    for model_type in (*MODEL_TYPES, "gpt_oss", "newllm"):
        base, now = read(config_of(model_type)), read(config_of(model_type, **{name: value}))
        if isinstance(now, dict):
            now = {key: now.get(key) for key in now.keys() | base.keys() if now.get(key) != base.get(key)}
        found.setdefault(json.dumps(now, sort_keys=True), []).append(model_type)
    return found


def family_facts(model_type: str) -> dict[str, Any]:
    """Return what is read by default and estimated of a model type."""
    config = config_of(model_type)
    return {"read": read(config), "trials": [estimate(config, trial) for trial in TRIALS]}


def builtin_facts(name: str) -> dict[str, Any]:
    """Return what is read and estimated of a built-in model."""
    config = {**BUILTIN_MODELS, **VISION_MODELS}[name].config
    return {"architecture": read(config), "trials": [estimate(config, trial) for trial in TRIALS[:2]]}


@cache
def facts() -> dict[str, Any]:
    """Return all facts, by subject and name."""
    return {
        "cards": {name: card_facts(gpu) for name, gpu in KNOWN_GPUS.items()},
        "names": {text: name_card(text).name for text in OTHER_NAMES},
        "capabilities": {f"{major}.{minor}": capability_facts((major, minor)) for major, minor in CAPABILITIES},
        "families": {model_type: family_facts(model_type) for model_type in (*MODEL_TYPES, *OTHER_TYPES)},
        "values": {
            f"{name}={json.dumps(value)}": values_read(name, value)
            for name, values in VALUES.items()
            for value in (LEFT_OUT, *values)
        },
        "builtin": {name: builtin_facts(name) for name in (*BUILTIN_MODELS, *VISION_MODELS)},
    }


@pytest.mark.parametrize("subject", ["cards", "names", "capabilities", "families", "builtin"])
def test_kept_facts_are_the_same(subject):
    kept, now = json.loads(FACTS.read_text(encoding="utf-8"))[subject], facts()[subject]
    assert kept
    assert {name: now.get(name) for name in kept} == kept


def test_values_of_each_field_are_read_and_refused_as_before():
    def by_type(readings: Mapping[str, Mapping[str, list[str]]]) -> dict[tuple[str, str], str]:
        return {
            (value, kind): read for value, found in readings.items() for read, kinds in found.items() for kind in kinds
        }

    kept, now = by_type(json.loads(FACTS.read_text(encoding="utf-8"))["values"]), by_type(facts()["values"])
    assert len(kept) > 1000
    assert {key: now.get(key) for key in kept} == kept


if __name__ == "__main__":
    lines = [
        f'"{subject}": {{' + ",".join(f"\n{json.dumps(name)}: {json.dumps(each)}" for name, each in rows.items()) + "}"
        for subject, rows in facts().items()
    ]
    FACTS.write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")
