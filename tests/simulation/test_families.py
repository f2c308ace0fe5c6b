"""One step of the real trainer per model family, from its `config.json`."""

from typing import Any

import pytest
from simulating import small_spec

from profiler.allocator import Trace
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import Category
from profiler.simulation.session import Simulation
from profiler.training.run import run_training

SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}
EXPERTS, USED, WIDTH = 4, 2, 32
MIXTURE = {"num_experts": EXPERTS, "num_experts_per_tok": USED, "moe_intermediate_size": WIDTH}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {},
    "mistral": {"sliding_window": 8},  # shorter than prompt and completion
    "gemma": {},
    "gemma3_text": {"sliding_window": 8},
    "qwen3_moe": MIXTURE,
    "mixtral": {"num_local_experts": EXPERTS, "num_experts_per_tok": USED},
}


def one_step(family: str, gpu: str = "h100-80gb") -> Trace:
    spec = small_spec(steps=1, gpu=gpu)
    simulation = Simulation(KNOWN_GPUS[gpu])
    trained = run_training(spec, {"model_type": family, **SIZES, **FAMILIES[family]}, simulation)
    assert trained.steps_run == 1
    return simulation.recorder.finished()


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_one_step_runs(family: str) -> None:
    trace = one_step(family)
    assert {Category.WEIGHTS, Category.GRADIENTS, Category.OPTIMIZER_STATE} <= set(trace.categories)


@pytest.mark.slow
def test_experts_take_memory_by_tokens_and_not_by_routing() -> None:
    """transformers sorts tokens by expert and multiplies in groups: `tokens x experts used` rows, for any routing."""
    trace = one_step("qwen3_moe")
    tokens = 4 * (8 + 12)  # four sequences of the micro-batch, prompt and completion
    grouped = [index for index, site in enumerate(trace.sites) if site.operation == "aten._grouped_mm"]
    assert grouped
    shapes = {trace.sites[index].shape for index in grouped}
    assert {(tokens * USED, 2 * WIDTH), (tokens * USED, 64)} <= shapes  # gate and up together; down
    # Gradients of all experts' weights are made, those of experts without a token included.
    assert {(EXPERTS, 64, 2 * WIDTH), (EXPERTS, WIDTH, 64)} & shapes
