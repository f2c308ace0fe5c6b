"""Trials on the simulated GPU, from the real trainer to the outcome."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import transformers
from matrix import further
from peft.tuners import tuners_utils
from simulating import LORA, small_spec
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, AutoConfig
from transformers.models.auto.configuration_auto import model_type_to_module_name
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from profiler.analytical.estimate import phase_instants
from profiler.config.models.architecture import MODEL_TYPES, read_architecture
from profiler.config.models.lookup import builtin_architecture
from profiler.config.trials.key_values import unknown_targets
from profiler.domain.memory import MIB, Category, Phase
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.runs.outcome import Outcome, Status
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.trial import Attention, Dtype, Lengths, Logprobs, Rollout, Tuning
from profiler.worker.simulated import run_simulated


def run(**keys: Any) -> Outcome:
    spec = small_spec(**keys)
    return run_simulated(spec, BUILTIN_MODELS[spec.model].config)


VALUES: dict[str, list[Any]] = {
    "optim": list(Optimizer),
    "logprobs": [each for each in Logprobs if each.is_of_completions],
    "lengths": list(Lengths),
    "rollout": list(Rollout),
    "attn_implementation": list(Attention),
    "dtype": [each for each in Dtype if each.is_of_todays_trl],
    "gpu": ["h100-80gb", "a100-40gb", "rtx-4090-24gb", "b200-180gb"],
}


def together(values: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Return as few trials as have every value of every key."""
    trials = [
        {key: found[place % len(found)] for key, found in values.items()}
        for place in range(max(map(len, values.values())))
    ]
    # RMSprop of bitsandbytes has no kernel for bfloat16.
    trials = [keys | ({"dtype": Dtype.FLOAT32} if "rmsprop" in keys["optim"] else {}) for keys in trials]
    return [{**keys, "bf16": keys["dtype"] is not Dtype.FLOAT16, "beta": 0.04} for keys in trials]


TOGETHER = together(VALUES)
MOST = max(len(found) for key, found in VALUES.items() if key != "optim")
"""So many trials have every value of every key but the optimizer; the others have further optimizers."""

ADAPTED: list[dict[str, Any]] = [
    {"logprobs": logprobs, "tuning": Tuning.LORA, **LORA} for logprobs in Logprobs if logprobs.is_of_completions
]

CASES: list[Any] = [
    *TOGETHER[:MOST],
    *further(*TOGETHER[MOST:]),
    ADAPTED[0],
    *further(*ADAPTED[1:]),
    {"gpu": "t4-16gb", "logprobs": Logprobs.FULL},
    {"tuning": Tuning.QLORA, "optim": Optimizer.PAGED_ADAMW_8BIT, **LORA},
    *further({"tuning": Tuning.QLORA, "gradient_checkpointing": False, "beta": 0.04, **LORA}),
    {"gradient_checkpointing": False},
    {"steps_per_generation": 8},
    *further(
        {"steps_per_generation": 1, "logprobs": Logprobs.FULL, "attn_implementation": Attention.FLASH_ATTENTION_2}
    ),
    {
        "num_generations": 8,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "steps_per_generation": 1,
    },
]


@pytest.mark.parametrize("keys", CASES, ids=str)
def test_every_way_to_train_has_an_outcome_whose_parts_sum_to_its_peak(keys: dict[str, Any]) -> None:
    outcome = run(**keys)
    assert outcome.status is Status.OK, outcome.message
    peak = outcome.peaks.allocated_bytes
    assert peak is not None
    assert peak > 0
    assert sum(share.size_bytes for share in outcome.breakdown.shares) == peak
    assert max(phase.peak_allocated_bytes or 0 for phase in outcome.peaks.phases) == peak
    other = sum(share.size_bytes for share in outcome.breakdown.shares if share.category is Category.OTHER)
    assert other <= peak / 100
    assert outcome.unlimited.required_allocated_bytes == peak
    assert outcome.work.steps_run == 2
    assert outcome.work.parameters == BUILTIN_MODELS["tiny"].parameters
    assert outcome.work.step_time_s is None
    assert outcome.peaks.reserved_bytes is not None
    assert outcome.card.context_bytes is not None
    assert outcome.peaks.reserved_bytes >= peak
    assert outcome.peaks.device_bytes == outcome.peaks.reserved_bytes + outcome.card.context_bytes
    assert max(phase.peak_reserved_bytes or 0 for phase in outcome.peaks.phases) == outcome.peaks.reserved_bytes
    assert 1 <= len(outcome.breakdown.largest) <= 10
    assert list(outcome.breakdown.largest) == sorted(outcome.breakdown.largest, key=lambda group: -group.size_bytes)


def test_a_card_that_is_too_small_has_an_outcome_with_the_memory_needed() -> None:
    once = {"steps": 1, "gradient_accumulation_steps": 1, "steps_per_generation": 1}
    outcome = run(model="qwen2.5-3b", gpu="t4-16gb", logprobs=Logprobs.FULL, **once)
    assert outcome.status is Status.OOM
    assert outcome.verdict.oom is not None
    assert outcome.verdict.oom.requested_bytes is not None
    assert outcome.verdict.oom.free_bytes is not None
    # For a request below 10 MiB the allocator requests a segment of 20 MiB.
    assert outcome.verdict.oom.free_bytes < max(outcome.verdict.oom.requested_bytes, 20 * MIB)
    assert (outcome.verdict.oom.allocated_bytes or 0) <= (outcome.verdict.oom.reserved_bytes or 0)
    assert outcome.peaks.alloc_retries is not None
    assert outcome.peaks.alloc_retries >= 1
    assert outcome.card.memory_bytes is not None
    assert outcome.peaks.allocated_bytes is not None
    assert outcome.unlimited.required_allocated_bytes is not None
    assert outcome.peaks.allocated_bytes <= outcome.card.memory_bytes < outcome.unlimited.required_allocated_bytes
    assert outcome.peaks.phases[-1].phase is outcome.verdict.oom.phase
    assert outcome.message.startswith("CUDA out of memory. Tried to allocate")
    assert "would have been needed" in outcome.message
    assert outcome.work.steps_run == 0


def test_phases_are_reported_in_order() -> None:
    phases = [phase.phase for phase in run(beta=0.04).peaks.phases]
    assert phases == [
        Phase.LOAD, Phase.ROLLOUT, Phase.SCORE, Phase.REWARD, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER,
    ]  # fmt: skip


def test_methods_that_save_memory_need_less() -> None:
    """Each method against the one it improves on, with a model that is large compared with constants."""
    size: dict[str, Any] = {
        "model": "qwen2.5-0.5b",
        "max_prompt_length": 256,
        "max_completion_length": 256,
        "gradient_accumulation_steps": 1,
        "steps_per_generation": 1,
        "rollout": Rollout.SYNTHETIC,
    }

    def needed(**keys: Any) -> int:
        return run(**(size | keys)).peaks.allocated_bytes or 0

    full = needed(gradient_checkpointing=False)
    assert needed() < full
    assert needed(optim=Optimizer.ADAMW_8BIT, gradient_checkpointing=False) < full
    assert needed(logprobs=Logprobs.FULL, gradient_checkpointing=False) > full
    lora = needed(tuning=Tuning.LORA, gradient_checkpointing=False, **LORA)
    assert needed(tuning=Tuning.QLORA, gradient_checkpointing=False, **LORA) < lora


@pytest.mark.parametrize(
    ("logprobs", "dtype"), [(Logprobs.SELECTIVE_KERNEL, Dtype.BFLOAT16), (Logprobs.SELECTIVE_KEPT, Dtype.FLOAT32)]
)
def test_a_forward_of_all_logits_is_as_the_closed_form(logprobs: Logprobs, dtype: Dtype) -> None:
    """Autocast keeps its copies of float32 weights until the end of the model's forward, and not until the loss."""
    keys: dict[str, Any] = {"model": "qwen2.5-0.5b", "max_prompt_length": 32, "max_completion_length": 256, "steps": 1}
    keys |= {"logprobs": logprobs, "dtype": dtype, "rollout": Rollout.SYNTHETIC}
    (found,) = [phase.peak_allocated_bytes for phase in run(**keys).peaks.phases if phase.phase is Phase.FORWARD]
    instant = phase_instants(small_spec(**keys), builtin_architecture("qwen2.5-0.5b"))[Phase.FORWARD]
    assert instant.total_bytes == pytest.approx(found, rel=0.015)


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "llama", "mistral", "gemma"])
def test_model_families_are_simulated_from_their_config(model_type: str) -> None:
    config = {
        "model_type": model_type,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 512,
        "max_position_embeddings": 4096,
    }
    outcome = run_simulated(small_spec(model="./a-folder"), config)
    assert outcome.status is Status.OK, outcome.message


SMALL_MODEL: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


def test_attention_that_transformers_does_not_support_is_an_outcome() -> None:
    gemma2 = SMALL_MODEL | {"model_type": "gemma2", "head_dim": 16}
    outcome = run_simulated(small_spec(model="my/gemma2"), gemma2)
    assert outcome.status is Status.UNSUPPORTED
    assert "no attn_implementation=sdpa for model type gemma2" in outcome.message
    eager = run_simulated(small_spec(model="my/gemma2", attn_implementation=Attention.EAGER), gemma2)
    assert eager.status is Status.OK


def test_a_t4_cannot_multiply_bfloat16_into_float32() -> None:
    """torch refuses it on a card of that capability; float16 and `logprobs=full` run there."""
    outcome = run(gpu="t4-16gb")
    assert outcome.status is Status.UNSUPPORTED
    assert "compute capability below 8.0. Use fp16=true" in outcome.message
    assert run(gpu="t4-16gb", logprobs=Logprobs.FULL).status is Status.OK
    assert run(gpu="t4-16gb", dtype=Dtype.FLOAT16, bf16=False).status is Status.OK
    assert run(gpu="a100-40gb").status is Status.OK


MADE_UP = SMALL_MODEL | {"architectures": ["MadeUpForCausalLM"], "num_experts_per_tok": 1, "first_k_dense_replace": 0}
MADE_UP |= {"num_key_value_heads": SMALL_MODEL["num_attention_heads"]}
MADE_UP |= {"rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3]}}  # sections of a head of 16
PLAIN_ROPE = {"rope_type": "default"}
SCALED = PLAIN_ROPE | {"llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 512}
OF_FAMILY: dict[str, dict[str, Any]] = {
    "helium": {"head_dim": 16},
    "hunyuan_v1_dense": {"head_dim": 16},
    "ministral3": {"rope_parameters": SCALED},
    "gemma4_text": {"rope_parameters": {"full_attention": PLAIN_ROPE, "sliding_attention": PLAIN_ROPE}},
}


def made_up(model_type: str) -> dict[str, Any]:
    """A model that every family can be read as: latent attention has keys for every head."""
    return MADE_UP | {"model_type": model_type} | OF_FAMILY.get(model_type, {})


def test_layers_of_mamba_that_are_refused_are_those_of_peft() -> None:
    lora: Any = SimpleNamespace(peft_type="LORA")
    spec, shape = small_spec(**LORA), read_architecture(BUILTIN_MODELS["tiny"].config, model="tiny")

    def is_refused_by_peft(model_type: str, name: str) -> bool:
        model: Any = SimpleNamespace(config=SimpleNamespace(model_type=model_type))
        try:
            tuners_utils._check_lora_target_modules_mamba(lora, model, name)
        except ValueError:
            return True
        return False

    for model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        for name in ("out_proj", "conv1d", "in_proj", "o_proj"):
            asked, of_type = replace(spec, lora_target_modules=(name,)), replace(shape, model_type=model_type)
            own = any("which peft refuses" in fault.problem for fault in unknown_targets(asked, of_type))
            assert own == is_refused_by_peft(model_type, name), (model_type, name)


def test_families_without_sdpa_are_those_of_transformers() -> None:
    for model_type in (*MODEL_TYPES, "gpt_oss"):
        config = AutoConfig.for_model(model_type)
        architecture = read_architecture(made_up(model_type), model="m")
        is_causal = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
        models = MODEL_FOR_CAUSAL_LM_MAPPING if is_causal else MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
        assert architecture.has_sdpa is models[type(config)]._supports_sdpa, model_type


def test_families_with_optional_kernels_are_those_of_transformers() -> None:
    folder = Path(transformers.__file__).parent / "models"
    found = set()
    for model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        files = (folder / model_type_to_module_name(model_type)).glob("modeling_*.py")
        if any("@use_kernel_func_from_hub_with_fallback(" in file.read_text() for file in files):
            found.add(model_type)
    noted = {
        model_type
        for model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        if read_architecture(made_up(model_type), model="m").has_optional_kernels
    }
    assert noted == found >= {"qwen3_next", "qwen3_5_text", "lfm2"}


def test_a_mixture_of_experts_is_simulated() -> None:
    mixture = SMALL_MODEL | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
    outcome = run_simulated(small_spec(model="my/mixture"), mixture | {"model_type": "qwen3_moe"})
    assert outcome.status is Status.OK
    # By hand, of two layers attention 64 x (64 + 32 + 32 + 64) and its two norms of 16, router 4 x 64, four experts of
    # 3 x 64 x 32 and two norms of 64; embedding and LM head 512 x 64 each; the last norm 64.
    layer = 64 * 192 + 32 + 4 * 64 + 4 * 3 * 64 * 32 + 128
    assert outcome.work.parameters == 2 * layer + 2 * 512 * 64 + 64
