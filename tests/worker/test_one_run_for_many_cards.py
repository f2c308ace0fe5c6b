"""One run of the trainer for several cards: each has the outcome of a run of its own."""

from dataclasses import replace
from typing import Any

import pytest
from matrix import further
from simulating import LORA, small_spec

from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.runs.outcome import Status
from profiler.domain.trials.trial import Dtype, Lengths, Rollout, TrialSpec, Tuning
from profiler.worker.simulated import SimulatedRun, outcome_on_card, simulate, snapshot_on_card

TINY = BUILTIN_MODELS["tiny"].config
EIGHT = ("a100-40gb", "rtx-4090-24gb", "rtx-5090-32gb")
LAPTOP = "rtx-3080-laptop-16gb"
NINE = ("h100-80gb", "h200-141gb", "b200-180gb")
CASES: dict[str, dict[str, Any]] = {
    # With a head_dim of 128 the tiles of the memory-efficient backward differ between 8.0, 8.9 and 12.0.
    "ragged, wide heads": {"lengths": Lengths.RAGGED, "gradient_checkpointing": False, "steps": 1},
    "forced lengths": {"lengths": Lengths.FORCED, "steps": 4, "rollout": Rollout.SYNTHETIC},
    "LoRA in float32": {
        "tuning": Tuning.LORA,
        "dtype": Dtype.FLOAT32,
        "bf16": False,
        "rollout": Rollout.SYNTHETIC,
        "steps": 1,
        **LORA,
    },
}
WIDE = {**TINY, "head_dim": 128}


CARDS = {"eight": EIGHT, "nine": NINE}
SHARED = [("ragged, wide heads", "eight"), ("forced lengths", "nine")]
"""Each family of cards; the other pairs are further cases."""
OTHERS = [(case, family) for case in CASES for family in CARDS if (case, family) not in SHARED]


@pytest.mark.parametrize("pair", [*SHARED, *further(*OTHERS)], ids="-".join)
def test_a_shared_run_has_the_outcome_of_each_cards_own(pair: tuple[str, str]) -> None:
    case, gpus = pair[0], CARDS[pair[1]]
    spec = small_spec(gpu=gpus[0], **CASES[case])
    shared = simulate(spec, WIDE, gpus=[KNOWN_GPUS[name] for name in gpus])
    for name in gpus:
        own = replace(spec, gpu=name)
        assert shared.answers(own)
        assert outcome_on_card(shared, own) == outcome_on_card(simulate(own, WIDE), own), name


def test_sizes_differ_within_a_family() -> None:
    spec = small_spec(gpu="a100-40gb", **CASES["ragged, wide heads"])
    shared = simulate(spec, WIDE, gpus=[KNOWN_GPUS[name] for name in (*EIGHT, LAPTOP)])
    by_capability = {name: shared.trace.on(KNOWN_GPUS[name].chip).sizes_bytes for name in (*EIGHT, LAPTOP)}
    assert by_capability["a100-40gb"] == shared.trace.sizes_bytes
    # Tiles of 128 by 128 against 64 by 64, for every block of tokens.
    assert by_capability["rtx-4090-24gb"] != by_capability["a100-40gb"]
    assert by_capability["rtx-4090-24gb"] == by_capability[LAPTOP]


def test_a_shared_run_is_not_valid_for_a_diverged_card() -> None:
    # FlashAttention has a backward for a head_dim of 208 on Ampere, not on Ada.
    wider = {**TINY, "head_dim": 208}
    spec = small_spec(gpu="a100-40gb", lengths=Lengths.FORCED)
    shared = simulate(spec, wider, gpus=[KNOWN_GPUS["rtx-4090-24gb"], KNOWN_GPUS["a100-80gb"]])
    assert shared.answers(replace(spec, gpu="a100-80gb"))
    assert not shared.answers(replace(spec, gpu="rtx-4090-24gb"))


def test_a_run_is_not_valid_for_a_card_that_was_not_named() -> None:
    spec = small_spec(gpu="a100-40gb")
    assert not simulate(spec, TINY).answers(replace(spec, gpu="rtx-4090-24gb"))


def test_a_fraction_is_one_of_all_memory_of_the_card() -> None:
    """`setMemoryFraction` multiplies by the total of `cudaMemGetInfo`, which CUDA's context is a part of."""
    spec = small_spec(gpu="h200-141gb", rollout=Rollout.SYNTHETIC, steps=1)
    gpu, run = KNOWN_GPUS["h200-141gb"], simulate(spec, TINY)
    needed = run_reserved(run, spec)
    # Enough of all memory, and too little of what is left without the context.
    enough = replace(spec, alloc_conf=f"per_process_memory_fraction:{(needed + 1) / gpu.memory_bytes!r}")
    assert needed > (needed + 1) / gpu.memory_bytes * gpu.usable_bytes
    assert run_reserved(run, enough) == needed
    assert outcome_on_card(run, enough).status is Status.OK
    less = replace(spec, alloc_conf=f"per_process_memory_fraction:{(needed - 1) / gpu.memory_bytes!r}")
    assert outcome_on_card(run, less).peaks.alloc_retries or outcome_on_card(run, less).status is Status.OOM
    history = snapshot_on_card(run, enough)["device_traces"][0]
    assert "oom" not in {entry["action"] for entry in history}


def run_reserved(run: SimulatedRun, spec: TrialSpec) -> int:
    found = outcome_on_card(run, spec).peaks.reserved_bytes
    assert found is not None
    return found
