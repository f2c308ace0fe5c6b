"""The estimate of each family compared with its simulated and emulated trials, phase by phase.

`families.json` has the peaks in bytes of small trials with transformers 5.23, trl 1.16 and peft 0.21: simulated, and on
torch's CUDA build with an emulated driver. `python tests/analytical/test_families_estimate.py` simulates them again;
with EMULATION_PYTHON it emulates them too.

Those of linear attention judge formulas that were made from traces of other models: 4 layers of 512 with 8 or 16 heads
of values, of 32 to 64, in rows of 290 tokens.
"""

import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import pytest
from toy_models import TWO_STEPS

from profiler.analytical.estimate import phase_instants, refuse_without_form
from profiler.config.models.architecture import read_architecture
from profiler.domain.memory import Phase
from profiler.domain.runs.outcome import Outcome
from profiler.domain.trials.trial import ALL_LINEAR, Attention, Lengths, Rollout, TrialSpec, Tuning

KEPT = Path(__file__).with_name("families.json")
MOST = 0.008
"""The largest difference of a phase, as a part of it."""
OF_TABLES = {"olmo3": 0.012}
"""The same of a family that makes tables of positions in float32 for two kinds of layers, 2 MiB of these trials."""

OF_ROLLOUTS = 0.024
"""The same of rollouts with wide queries: a prefill lacks results of an adapter of q, and has the cache of all layers
where the last one has none yet."""

SIZES: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 8192,
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
EXPERTS: dict[str, Any] = {"head_dim": 64, "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 512}
ROUTED: dict[str, Any] = {
    **{key: value for key, value in EXPERTS.items() if key != "num_experts"},
    "model_type": "glm4_moe",
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
LATENT: dict[str, Any] = {
    **{key: value for key, value in ROUTED.items() if key != "head_dim"},
    "model_type": "deepseek_v3",
    "num_key_value_heads": 16,
    "q_lora_rank": 384,
    "kv_lora_rank": 256,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "n_group": 1,
    "topk_group": 1,
}
WIDE_HEADS: dict[str, Any] = {
    **LATENT,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "intermediate_size": 1024,
    "first_k_dense_replace": 3,
}
"""The peaks are in attention."""
DELTA: dict[str, Any] = {
    "head_dim": 64,
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
}
WIDE_DELTA: dict[str, Any] = {
    **DELTA,
    "model_type": "qwen3_5_text",
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "layer_types": ["linear_attention", "full_attention"] * 3,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}
"""The peaks are in linear attention, which every other layer has."""
PUBLISHED: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "num_hidden_layers": 8,
    "head_dim": 256,
    "vocab_size": 248_320,
}
"""The widths of Qwen3.5-9B, which are transformers' defaults."""
SHARING: dict[str, Any] = {**DELTA, **EXPERTS, "shared_expert_intermediate_size": 640}
WIDE_GLOBAL: dict[str, Any] = {
    "model_type": "gemma4_text",
    "head_dim": 64,
    "global_head_dim": 128,
    "num_global_key_value_heads": 2,
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 1024,
    "final_logit_softcapping": 30.0,
}
PUBLISHED_GEMMA: dict[str, Any] = {
    "hidden_size": 5376,
    "intermediate_size": 21_504,
    "num_hidden_layers": 12,
    "layer_types": None,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "global_head_dim": 512,
    "num_global_key_value_heads": 4,
    "vocab_size": 262_144,
    "tie_word_embeddings": True,
}
"""The widths of Gemma 4 31B, from its `config.json` in public files."""
NORMED_EXPERTS: dict[str, Any] = {
    "enable_moe_block": True,
    "num_experts": 16,
    "top_k_experts": 4,
    "moe_intermediate_size": 512,
    "intermediate_size": 1536,
}
PUBLISHED_EXPERTS: dict[str, Any] = {
    "hidden_size": 2816,
    "intermediate_size": 2112,
    "moe_intermediate_size": 704,
    "num_experts": 128,
    "top_k_experts": 8,
    "num_hidden_layers": 6,
    "layer_types": None,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 256,
    "global_head_dim": 512,
    "num_global_key_value_heads": 2,
    "vocab_size": 262_144,
    "tie_word_embeddings": True,
}
"""The widths of Gemma 4 26B-A4B, from its `config.json` in public files."""
SECOND_INPUTS: dict[str, Any] = {
    "model_type": "gemma4_text",
    "head_dim": 64,
    "global_head_dim": 128,
    "hidden_size_per_layer_input": 128,
    "vocab_size_per_layer_input": 8192,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 1024,
    "final_logit_softcapping": 30.0,
}
PUBLISHED_SMALL: dict[str, Any] = {
    **{key: value for key, value in SECOND_INPUTS.items() if key != "vocab_size_per_layer_input"},
    "num_attention_heads": 8,
    "head_dim": 256,
    "global_head_dim": 512,
    "hidden_size_per_layer_input": 256,
    "sliding_window": 512,
    "vocab_size": 262_144,
    "tie_word_embeddings": True,
}
E2B: dict[str, Any] = {
    **PUBLISHED_SMALL,
    "hidden_size": 1536,
    "intermediate_size": 6144,
    "num_hidden_layers": 35,
    "num_key_value_heads": 1,
    "num_kv_shared_layers": 20,
    "layer_types": [*["sliding_attention"] * 4, "full_attention"] * 7,
}
E4B: dict[str, Any] = {
    **PUBLISHED_SMALL,
    "hidden_size": 2560,
    "intermediate_size": 10_240,
    "num_hidden_layers": 42,
    "num_key_value_heads": 2,
    "num_kv_shared_layers": 18,
    "use_double_wide_mlp": False,
    "layer_types": [*["sliding_attention"] * 5, "full_attention"] * 7,
}
"""The models of text of Gemma 4 E2B and E4B as a whole, from their `config.json` in public files."""
AUDIO: dict[str, Any] = {
    "model_type": "gemma4_audio",
    "hidden_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
}
SIGLIP: dict[str, Any] = {
    "model_type": "siglip_vision_model",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 6,
    "image_size": 896,
    "patch_size": 14,
    "vision_use_head": False,
}
TOWER: dict[str, Any] = {"model_type": "gemma4_vision", "num_hidden_layers": 6}
WIDE_QUERIES: dict[str, Any] = {"head_dim": 256, "num_key_value_heads": 1}
"""The peaks are in the norm over queries, which are wider than the MLP."""
OWN: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": None},
    "phi3": {"partial_rotary_factor": 0.75},
    "granite": {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 8.0},
    "olmo2": {},
    "olmo3": {"layer_types": ["full_attention"] * 4},
    "glm": {"head_dim": 64},
    "glm4": {"head_dim": 64},
    "smollm3": {},
    "ministral3": {"head_dim": 64},
    "exaone4": {"layer_types": ["full_attention"] * 4},
    "hunyuan_v1_dense": {"head_dim": 64},
    "ernie4_5": {"head_dim": 64},
    "helium": {"head_dim": 64},
    "qwen3, wide queries": {**WIDE_QUERIES, "model_type": "qwen3"},
    "gemma3_text": {"head_dim": 64},
    "gemma3_text, wide queries": {**WIDE_QUERIES, "model_type": "gemma3_text"},
    "hunyuan_v1_dense, wide queries": {**WIDE_QUERIES, "model_type": "hunyuan_v1_dense"},
    "gemma4_text": WIDE_GLOBAL,
    "gemma4_text, published": {**WIDE_GLOBAL, **PUBLISHED_GEMMA},
    "gemma4_text, experts": {**WIDE_GLOBAL, **NORMED_EXPERTS},
    "gemma4_text, published experts": {**WIDE_GLOBAL, **NORMED_EXPERTS, **PUBLISHED_EXPERTS},
    "gemma3": {
        "text_config": {**SIZES, "model_type": "gemma3_text", "head_dim": 64},
        "vision_config": SIGLIP,
        "image_token_id": 8000,
    },
    "gemma4_text, second inputs": SECOND_INPUTS,
    "gemma4_text, E2B": E2B,
    "gemma4_text, E4B": E4B,
    "gemma4": {"text_config": {**SIZES, **WIDE_GLOBAL}, "vision_config": TOWER, "image_token_id": 8000},
    "gemma4, sound": {
        "model_type": "gemma4",
        "text_config": {**SIZES, **SECOND_INPUTS},
        "vision_config": TOWER,
        "audio_config": AUDIO,
        "image_token_id": 8000,
        "audio_token_id": 8001,
    },
    "qwen3_moe": EXPERTS,
    "gpt_oss": {
        "head_dim": 64,
        "num_local_experts": 16,
        "num_experts_per_tok": 4,
        "intermediate_size": 512,
        "sliding_window": 128,
    },
    "glm4_moe": ROUTED,
    "glm4_moe, wide first layers": {**ROUTED, "intermediate_size": 16_384, "first_k_dense_replace": 2},
    "deepseek_v3": LATENT,
    "deepseek_v3, wide heads": WIDE_HEADS,
    "glm4_moe_lite": {**LATENT, "model_type": "glm4_moe_lite", "v_head_dim": 96},
    "deepseek_v2": {**LATENT, "model_type": "deepseek_v2", "q_lora_rank": None, "n_shared_experts": 2},
    "qwen3_next": SHARING,
    "qwen3_5_text": DELTA,
    "qwen3_5_text, wide": WIDE_DELTA,
    "qwen3_5_text, published": PUBLISHED,
    "qwen3_5_moe_text": SHARING,
    "mixtral": {"head_dim": 64, "num_local_experts": 16, "num_experts_per_tok": 4, "intermediate_size": 512},
}
"""What a family states in addition to the common sizes."""

LORA: dict[str, Any] = {
    "tuning": Tuning.LORA,
    "lora_rank": 16,
    "lora_alpha": 32,
    "lora_target_modules": (ALL_LINEAR,),
}
UNCHECKPOINTED: dict[str, Any] = {"gradient_checkpointing": False}
CASES: dict[str, dict[str, Any]] = {
    "full": {},
    "full, all kept": UNCHECKPOINTED,
    "lora": LORA,
    "lora, all kept": {**LORA, **UNCHECKPOINTED},
    "qlora": {**LORA, "tuning": Tuning.QLORA},
    "o_proj": {**LORA, "lora_target_modules": ("o_proj",), **UNCHECKPOINTED},
}
LEFT_OUT = {("gemma4_text, published", "qlora"), ("gemma4", "o_proj"), ("gemma4, sound", "o_proj")}
"""bitsandbytes widens a weight for each decoded token, by a rule of the card (`widened_bytes`); and peft refuses to
adapt a module of the tower that has the name of a linear layer and holds one."""
NOT_EMULATED = (
    *("gemma4_text, experts", "gemma4_text, published experts", "gemma4_text, second inputs", "gemma4, sound"),
    *("gemma4_text, E2B", "gemma4_text, E4B"),
)
"""Families without a trial on an emulated card; that of gpt_oss has the kernels of their experts."""
IN_EAGER: dict[str, Any] = {"attn_implementation": Attention.EAGER}
IN_ALL: dict[str, dict[str, Any]] = {"gpt_oss": IN_EAGER}
"""Keys of all cases of a family."""
GENERATED: dict[str, Any] = {**LORA, "rollout": Rollout.GENERATE, "max_prompt_length": 32}
OF_ATTENTION: dict[str, Any] = {"lora_target_modules": ("q_proj", "k_proj", "v_proj", "o_proj")}
OF_INPUTS: dict[str, Any] = {"lora_target_modules": ("per_layer_input_gate", "per_layer_projection")}
OTHERS: dict[str, dict[str, dict[str, Any]]] = {
    "olmo2": {"eager": IN_EAGER},
    "phi3": {"eager": IN_EAGER},
    "granite": {"eager": IN_EAGER},
    "gpt_oss": {"lora, generated": GENERATED},
    "deepseek_v3": {
        "lora, generated": GENERATED,
        "flash, all kept": {**UNCHECKPOINTED, "attn_implementation": Attention.FLASH_ATTENTION_2},
        "ragged, all kept": {**UNCHECKPOINTED, "lengths": Lengths.RAGGED},
    },
    "deepseek_v3, wide heads": {"lora, generated": GENERATED},
    "qwen3_next": {"lora, generated": GENERATED},
    "qwen3_5_text": {
        "lora, generated": GENERATED,
        "lora of attention, all kept": {**LORA, **OF_ATTENTION, **UNCHECKPOINTED},
        "eager, all kept": {**IN_EAGER, **UNCHECKPOINTED},
        "flash, all kept": {**UNCHECKPOINTED, "attn_implementation": Attention.FLASH_ATTENTION_2},
        "ragged, all kept": {**UNCHECKPOINTED, "lengths": Lengths.RAGGED},
    },
    "qwen3_5_text, wide": {"lora, generated": GENERATED, "full, generated": {"rollout": Rollout.GENERATE}},
    "qwen3_5_moe_text": {"lora of attention": {**LORA, **OF_ATTENTION}},
    "gemma4_text": {
        "lora, generated": GENERATED,
        "ragged, all kept": {**UNCHECKPOINTED, "lengths": Lengths.RAGGED},
        "beyond the window": {**LORA, "max_completion_length": 1024},
        "eager, all kept": {**IN_EAGER, **UNCHECKPOINTED},
    },
    "gemma4_text, published": {
        "ragged, all kept": {**UNCHECKPOINTED, "lengths": Lengths.RAGGED},
        "eager": {**LORA, **IN_EAGER},
    },
    "gemma4_text, experts": {
        "lora, generated": GENERATED,
        "ragged, all kept": {**UNCHECKPOINTED, "lengths": Lengths.RAGGED},
        "beyond the window": {**LORA, "max_completion_length": 1024},
        "with a reference": {"beta": 0.04},
        "lora of the router": {**LORA, "lora_target_modules": ("q_proj", "proj"), **UNCHECKPOINTED},
    },
    "gemma4_text, second inputs": {
        "lora, generated": GENERATED,
        "ragged, all kept": {**UNCHECKPOINTED, "lengths": Lengths.RAGGED},
        "beyond the window": {**LORA, "max_completion_length": 1024},
        "eager, all kept": {**IN_EAGER, **UNCHECKPOINTED},
        "with a reference": {"beta": 0.04},
        "lora of attention": {**LORA, **OF_ATTENTION},
        "lora of attention, all kept": {**LORA, **OF_ATTENTION, **UNCHECKPOINTED},
        "lora of second inputs, all kept": {**LORA, **OF_INPUTS, **UNCHECKPOINTED},
    },
    "gemma4_text, E2B": {"lora of attention": {**LORA, **OF_ATTENTION}},
    "gemma4_text, E4B": {"lora of attention": {**LORA, **OF_ATTENTION}},
    "gemma4, sound": {"lora, generated": GENERATED, "with a reference": {"beta": 0.04}},
    "gemma3": {
        "lora, generated": GENERATED,
        "lora of attention, all kept": {**LORA, **OF_ATTENTION, **UNCHECKPOINTED},
        "with a reference": {"beta": 0.04},
    },
    "gemma4": {"lora, generated": GENERATED, "with a reference": {"beta": 0.04}},
    "qwen3, wide queries": {"lora of q": {**LORA, "lora_target_modules": ("q_proj",)}},
    "gemma3_text, wide queries": {"lora of q": {**LORA, "lora_target_modules": ("q_proj",)}},
    "smollm3": {"eager, lora, all kept": {**LORA, **IN_EAGER, **UNCHECKPOINTED}},
}
"""Further cases of a family."""


def config_of(family: str) -> dict[str, Any]:
    sizes = {} if "text_config" in OWN[family] else SIZES
    return {"model_type": family, **sizes, **OWN[family]}


def trials() -> dict[tuple[str, str], TrialSpec]:
    """Return the trials by family and case."""
    return {
        (family, case): replace(TWO_STEPS, model="tiny", **IN_ALL.get(family, {}), **keys)
        for family in OWN
        for case, keys in {**CASES, **OTHERS.get(family, {})}.items()
        if (family, case) not in LEFT_OUT
    }


def kept() -> dict[str, dict[str, dict[str, dict[str, int]]]]:
    found: dict[str, dict[str, dict[str, dict[str, int]]]] = json.loads(KEPT.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("family", OWN)
def test_each_phase_is_that_of_the_simulation(family: str) -> None:
    architecture = read_architecture(config_of(family), model="m")
    for (name, case), spec in trials().items():
        if name != family:
            continue
        refuse_without_form(spec, architecture)
        found = phase_instants(spec, architecture)
        for phase, size in kept()[family][case]["simulated"].items():
            is_wide = family.endswith("wide queries") and phase == Phase.ROLLOUT
            most = OF_ROLLOUTS if is_wide else OF_TABLES.get(family, MOST)
            assert found[Phase(phase)].total_bytes == pytest.approx(size, rel=most), (case, phase)


def assert_close(family: str, case: str, phase: Phase) -> None:
    """Check a phase in which what is judged is less than what others may differ by."""
    architecture, spec = read_architecture(config_of(family), model="m"), trials()[family, case]
    kept_bytes = kept()[family][case]["simulated"][str(phase)]
    assert phase_instants(spec, architecture)[phase].total_bytes == pytest.approx(kept_bytes, rel=0.001)


@pytest.mark.parametrize("case", ["full", "lora", "qlora"])
def test_a_shared_expert_is_freed_before_the_others(case: str) -> None:
    assert_close("qwen3_next", case, Phase.BACKWARD)


def test_a_linear_layer_is_recomputed_next_to_a_gradient() -> None:
    assert_close("qwen3_5_text, wide", "lora", Phase.BACKWARD)


def test_the_forward_of_an_earlier_kind_keeps_all_casts() -> None:
    assert_close("qwen3_5_text, wide", "lora", Phase.FORWARD)


@pytest.mark.parametrize("family", ["qwen3, wide queries", "gemma3_text, wide queries"])
def test_the_gradient_of_values_waits_for_a_later_norm(family: str) -> None:
    assert_close(family, "lora of q", Phase.BACKWARD)


@pytest.mark.parametrize("family", [family for family in OWN if family not in NOT_EMULATED])
def test_the_simulation_has_the_bytes_of_the_emulation(family: str) -> None:
    emulated = {case: both for case, both in kept()[family].items() if "emulated" in both}
    assert len(emulated) >= 2
    for case, both in emulated.items():
        assert both["emulated"].keys() == both["on_card"].keys()
        for phase, size in both["emulated"].items():
            assert both["on_card"][phase] == pytest.approx(size, rel=0.002), (case, phase)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "case"), [("olmo2", "qlora"), ("phi3", "o_proj")])
def test_the_kept_simulation_is_that_of_today(family: str, case: str) -> None:
    assert simulated(family, trials()[family, case]) == {
        key: kept()[family][case][key] for key in ("simulated", "on_card")
    }


def simulated(family: str, spec: TrialSpec) -> dict[str, dict[str, int]]:
    """Return the peaks of tensors, and those on the card, whose blocks keep what is not worth splitting."""
    from simulating import Simulated

    from profiler.worker.simulated import outcome_on_card, simulate

    run = simulate(spec, config_of(family))
    tensors: dict[str, int] = {}
    for phase, level in Simulated(trace=run.trace, trainer=None, decoding=None, work=()).levels():  # type: ignore[arg-type]
        tensors[str(phase)] = max(tensors.get(str(phase), 0), sum(level.values()))
    used = {phase: size for phase, size in tensors.items() if size}
    return {"simulated": used, "on_card": _by_phase(outcome_on_card(run, spec))}


def _by_phase(outcome: Outcome) -> dict[str, int]:
    return {str(peak.phase): peak.peak_allocated_bytes for peak in outcome.peaks.phases if peak.peak_allocated_bytes}


def emulated(cases: dict[tuple[str, str], TrialSpec], python: str) -> dict[tuple[str, str], dict[str, int]]:
    """Return the peaks of trials on an emulated card."""
    from dataclasses import replace

    from maintenance.emulated.running import run_pending, run_side, sides
    from profiler.config.options.run_options import RunOptions
    from profiler.storage.stores.record_store import RecordStore

    with tempfile.TemporaryDirectory() as folder:
        specs = []
        for (family, _), spec in cases.items():
            path = Path(folder) / family / "config.json"
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(config_of(family)), encoding="utf-8")
            specs.append(replace(spec, model=str(path.parent)))
        options = RunOptions(jobs=1, timeout_s=280, python=PurePath(python))
        side, store = sides(options)[0], RecordStore(Path(folder) / "records")
        run_pending(specs, [side], store=store, options=options, at_most=None, run=run_side)
        records = [store.find(side.trial(spec).trial_id) for spec in specs]
    return {name: _by_phase(record.outcome) for name, record in zip(cases, records, strict=True) if record is not None}


if __name__ == "__main__":
    named = sys.argv[1:] or list(OWN)
    new = {family: cases for family, cases in (kept() if KEPT.exists() else {}).items() if family in OWN}
    chosen = {name: spec for name, spec in trials().items() if name[0] in named}
    for (one, case_), spec_ in chosen.items():
        new.setdefault(one, {}).setdefault(case_, {}).update(simulated(one, spec_))
    if python_ := os.environ.get("EMULATION_PYTHON"):
        judged = {name: spec for name, spec in chosen.items() if name[1] in ("full, all kept", "qlora", "eager")}
        for (one, case_), peaks in emulated(judged, python_).items():
            new[one][case_]["emulated"] = peaks
    lines = (f"{json.dumps(one)}: {json.dumps(new[one])}" for one in OWN if one in new)
    KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
