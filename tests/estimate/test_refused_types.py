"""A refusal of a model that names a sweep is true: the real trainer runs on a simulated card, and else it fails."""

import contextlib
import importlib
import io
import subprocess
import sys
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from profiler.analytical.estimate import refuse_model
from profiler.constraints.commands import RUN_SCRIPT
from profiler.domain.errors import UsageError
from profiler.domain.trials.trial import Backend, Lengths, Rollout, TrialSpec
from profiler.estimate.job import counting
from profiler.estimate.job.counting import counted_by_transformers, read_and_counted
from profiler.training.models.parameter_count import count_model
from profiler.worker.simulated import simulate

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 96,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 512,
    "architectures": ["XForCausalLM"],
}
LINEAR: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention", "full_attention", "linear_attention"],
}
"""Layers in another order than the formulas know."""
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
PER_LAYER: dict[str, Any] = {"vocab_size_per_layer_input": 96, "hidden_size_per_layer_input": 16}
GEMMA_3N: dict[str, Any] = {
    **PER_LAYER,
    "intermediate_size": [128, 128, 64, 128],
    "num_kv_shared_layers": 0,
    "laurel_rank": 8,
    "layer_types": ["full_attention"] * 4,
    "activation_sparsity_pattern": [0.0] * 4,
    "altup_num_inputs": 2,
}
MAMBA: dict[str, Any] = {"mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 1}
SIMULATED: dict[str, dict[str, Any]] = {
    "qwen3_next": {**LINEAR, **EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 32},
    "qwen3_5_text": LINEAR,
    "gemma3n_text": GEMMA_3N,
    "gemma4_text": {**PER_LAYER, "num_kv_shared_layers": 2, "layer_types": ["full_attention"] * 4},
    "nemotron_h": {**MAMBA, "layers_block_type": ["mamba", "attention"] * 2},
}
"""Types whose refusals name a sweep."""
NOT_SIMULATED: dict[str, tuple[dict[str, Any], str]] = {
    "kimi_k2": ({**EXPERTS, "n_routed_experts": 4}, "transformers makes no language model of its config.json"),
    "granitemoe": (
        {"num_local_experts": 4, "num_experts_per_tok": 2},
        "trl 1.16 trains it with router_aux_loss_coef=0 only",
    ),
    "llama4_text": (
        {"num_local_experts": 4, "intermediate_size_mlp": 128},
        "trl 1.16 cannot train it, because its class has no base model",
    ),
}
"""Types that no trial runs, and why."""
SHORT = TrialSpec(
    backend=Backend.SIMULATED,
    gpu="h100-80gb",
    model="m",
    rollout=Rollout.SYNTHETIC,
    lengths=Lengths.FORCED,
    max_prompt_length=8,
    max_completion_length=8,
    steps=1,
)


def _run_here(command: Sequence[str], *, input: str, **_: Any) -> subprocess.CompletedProcess[str]:
    """Run the module of a command in this process, which has imported transformers; another would first have to."""
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said), contextlib.suppress(Exception):
        patch.setattr(sys, "stdin", io.StringIO(input))
        importlib.import_module(command[-1]).main()
    return subprocess.CompletedProcess(command, 0, said.getvalue(), "")


@pytest.fixture(autouse=True, scope="module")
def counted_here() -> Iterator[None]:
    """`test_silently_wrong.py` counts in a process of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting, "subprocess", SimpleNamespace(run=_run_here, TimeoutExpired=subprocess.TimeoutExpired))
        yield


def config_of(model_type: str) -> dict[str, Any]:
    own = SIMULATED.get(model_type) or NOT_SIMULATED[model_type][0]
    return {"model_type": model_type, **SIZES, **own}


def refusal(model_type: str) -> str:
    """Return what `estimate` says of a model of the type."""
    with pytest.raises(UsageError) as caught:
        refuse_model(read_and_counted(config_of(model_type), model="m", count=counted_by_transformers))
    return caught.value.faults[0].sentence()


@pytest.mark.slow
@pytest.mark.parametrize("model_type", SIMULATED)
def test_a_type_whose_refusal_names_a_sweep_is_simulated(model_type: str) -> None:
    assert refusal(model_type).endswith("`python -m profiler.sweep` simulates it.")
    run = simulate(SHORT, config_of(model_type))
    assert run.parameters == count_model(config_of(model_type)).parameters
    assert run.steps_run == 1


@pytest.mark.slow
@pytest.mark.parametrize("model_type", NOT_SIMULATED)
def test_a_type_that_no_trial_runs_is_sent_to_no_sweep(model_type: str) -> None:
    said = refusal(model_type)
    assert NOT_SIMULATED[model_type][1] in said
    assert "profiler.sweep" not in said
    assert said.endswith(RUN_SCRIPT)
    with pytest.raises((ValueError, AttributeError), match=r"Unrecognized model|last_hidden_state|num_experts"):
        simulate(SHORT, config_of(model_type))


@pytest.mark.parametrize("model_type", ["qwen3_next", "qwen3_5_text"])
def test_linear_attention_in_another_order_is_named(model_type: str) -> None:
    assert "layers" in refusal(model_type)
    assert "unknown model_type" not in refusal(model_type)
    config = {**config_of(model_type), "layer_types": ["linear_attention", "full_attention"] * 2}
    assert read_and_counted(config, model="m", count=counted_by_transformers).has_closed_form


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 2, "layer_types": ["full_attention"] * 4},
            "with layers that share keys and all see every token, or have experts, that no formula has",
        ),
    ],
)
def test_parts_of_gemma_4_without_a_formula_are_named(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_and_counted({**config_of("gemma4_text"), **fields}, model="m", count=count_model)
    assert said in caught.value.faults[0].sentence()


def test_a_mixture_of_code_of_its_own_is_sent_to_no_sweep() -> None:
    """Kimi-K2 as it is published: a mixture, whose classes are in its repository."""
    with pytest.raises(UsageError, match=r"code of its repository, which is not run\. To see what your script needs"):
        read_and_counted(
            {**config_of("kimi_k2"), "auto_map": {"AutoConfig": "c.K"}}, model="m", count=counted_by_transformers
        )
