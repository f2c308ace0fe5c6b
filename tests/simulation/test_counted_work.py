"""The work of a step as the simulation counts it, by hand for a small model."""

from typing import Any

import pytest
from simulating import simulate

from profiler.domain.cards.card import Roofline
from profiler.domain.cards.gpu import ROOFLINES
from profiler.domain.memory import Phase
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.runs.step_shape import Cost, PhaseWork
from profiler.domain.trials.trial import Lengths, Recipe

ROWS, TOKENS = 4, 64
CARD = Roofline(
    half_flops_per_s=100.0, single_flops_per_s=10.0, memory_bytes_per_s=10.0, link_bytes_per_s=1.0, source=""
)


def work_of(**keys: Any) -> dict[Phase, PhaseWork]:
    common: dict[str, Any] = {"recipe": Recipe.SFT, "max_length": TOKENS, "lengths": Lengths.FORCED, "steps": 1}
    found = simulate(counts=True, gradient_accumulation_steps=1, **common | keys).work
    return {work.phase: work for work in found}


@pytest.fixture(scope="module")
def plain() -> dict[Phase, PhaseWork]:
    return work_of(gradient_checkpointing=False)


@pytest.fixture(scope="module")
def checkpointed() -> dict[Phase, PhaseWork]:
    return work_of(gradient_checkpointing=True, activation_offloading=True)


def layer_flops() -> int:
    """Products and attention of all layers in one forward, two operations per multiplication."""
    config = BUILTIN_MODELS["tiny"].config
    hidden, wide, layers = (int(config[key]) for key in ("hidden_size", "intermediate_size", "num_hidden_layers"))
    heads, groups = int(config["num_attention_heads"]), int(config["num_key_value_heads"])
    projections = 2 * hidden * hidden + 2 * hidden * hidden * groups // heads + 3 * hidden * wide
    attention = 4 * ROWS * TOKENS * TOKENS * hidden
    return layers * (2 * ROWS * TOKENS * projections + attention)


def head_flops() -> int:
    """Of the LM head: every token but the first of a row is scored."""
    config = BUILTIN_MODELS["tiny"].config
    return 2 * ROWS * (TOKENS - 1) * int(config["hidden_size"]) * int(config["vocab_size"])


def test_forward_has_the_products_of_its_layers_and_of_the_head(plain: dict[Phase, PhaseWork]) -> None:
    assert plain[Phase.FORWARD].flops == layer_flops() + head_flops()


def test_checkpointing_runs_the_forward_of_the_layers_once_more(
    plain: dict[Phase, PhaseWork], checkpointed: dict[Phase, PhaseWork]
) -> None:
    more = checkpointed[Phase.BACKWARD].flops - plain[Phase.BACKWARD].flops
    # The last product of a layer is not needed, so torch stops before it.
    down = 2 * ROWS * TOKENS * 64 * 160 * 2
    assert more == layer_flops() - down
    assert checkpointed[Phase.FORWARD].flops == plain[Phase.FORWARD].flops


def test_the_optimizer_reads_four_tensors_per_parameter_and_writes_three(plain: dict[Phase, PhaseWork]) -> None:
    parameters = 122_048
    step = plain[Phase.OPTIMIZER]
    assert step.flops == 0
    assert step.moved_bytes >= 7 * 2 * parameters


def test_what_is_offloaded_comes_back(plain: dict[Phase, PhaseWork], checkpointed: dict[Phase, PhaseWork]) -> None:
    there, back = checkpointed[Phase.FORWARD], checkpointed[Phase.BACKWARD]
    assert there.to_host_bytes >= back.from_host_bytes > 0
    assert there.has_own_stream
    assert back.has_own_stream
    assert not any(work.to_host_bytes or work.from_host_bytes for work in plain.values())


def test_the_least_time_is_that_of_the_slower_part() -> None:
    operations = {Cost(200, 10, is_half=True): 2, Cost(0, 30, is_half=True): 1, Cost(20, 10, is_half=False): 1}
    work = PhaseWork(phase=Phase.FORWARD, operations=operations, to_host_bytes=8, from_host_bytes=20)
    assert (work.flops, work.moved_bytes) == (420, 60)
    assert work.seconds(CARD) == 2 * 2 + 3 + 2 + 20
    overlapped = PhaseWork(phase=Phase.FORWARD, operations=operations, from_host_bytes=20, has_own_stream=True)
    assert overlapped.seconds(CARD) == 20


def test_every_card_is_faster_in_half_precision() -> None:
    assert all(card.half_flops_per_s > card.single_flops_per_s > card.memory_bytes_per_s for card in ROOFLINES.values())
