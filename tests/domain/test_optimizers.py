"""The declarations of the optimizers."""

import pytest

from profiler.domain.trials.optimizers import HINTS, Kernels, Optimizer, Scratch, State


@pytest.mark.parametrize("optim", Optimizer)
def test_every_optimizer_is_declared_consistently(optim: Optimizer) -> None:
    traits = optim.traits

    assert bool(traits.scratch_text) == (traits.scratch is not Scratch.NONE)
    assert traits.state_text.format(n="7e9", e=2)
    if traits.is_paged:
        assert traits.kernels is Kernels.BITSANDBYTES
        assert traits.state in (State.EIGHT_BIT, State.FLOAT32)


def test_words_and_other_names_belong_to_one_optimizer() -> None:
    words = [optim.traits.label for optim in Optimizer if optim.traits.label]
    names = [*Optimizer, *(name for optim in Optimizer for name in optim.traits.other_names)]

    assert len(set(words)) == len(words)
    assert len(set(names)) == len(names)


def test_hints_are_about_other_names() -> None:
    known = {*Optimizer, *(name for optim in Optimizer for name in optim.traits.other_names)}

    assert not HINTS.keys() & known
    assert {hint.split("optim=")[1].split(",")[0] for hint in HINTS.values()} <= set(Optimizer)
