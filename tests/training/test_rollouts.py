"""Rollout engines by name."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from profiler.domain.trials.trial import Backend, Rollout, TrialSpec
from profiler.training.placement import RealDevice
from profiler.training.rollouts import ENGINES, EXTRAPOLATED, engine_name, rollout_engine
from profiler.training.rollouts.synthetic import SyntheticRollout

CPU = RealDevice(device=torch.device("cpu"))


class Extrapolator:
    """Counts rollouts and extrapolates no step."""

    most_rollouts = 2

    def __init__(self) -> None:
        self.rollouts = 0

    def rollout_begins(self) -> None:
        self.rollouts += 1

    def step_begins(self) -> bool:
        return True

    def rollout_ends(self) -> bool:
        return True


class Model:
    """A model whose `generate` returns its prompt."""

    config = None

    def prepare_inputs_for_generation(self, input_ids: torch.Tensor) -> dict[str, Any]:
        return {}

    def generate(self, *, input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        return input_ids


class Extrapolating(RealDevice):
    """A device whose decoding steps can be extrapolated."""

    def decode_extrapolator(self) -> Any:
        return self.extrapolator


def extrapolating() -> Any:
    placement = Extrapolating(device=torch.device("cpu"))
    object.__setattr__(placement, "extrapolator", Extrapolator())
    return placement


def trial(rollout: Rollout) -> TrialSpec:
    return TrialSpec(backend=Backend.CPU, gpu=None, model="tiny", rollout=rollout)


@pytest.mark.parametrize("rollout", list(Rollout))
def test_an_engine_is_found_by_the_value_of_the_key(rollout: Rollout) -> None:
    assert engine_name(trial(rollout), CPU) == rollout.value
    assert isinstance(rollout_engine(trial(rollout), CPU), type(ENGINES[rollout.value](CPU)))


def test_decoding_is_extrapolated_where_the_placement_can() -> None:
    assert engine_name(trial(Rollout.GENERATE), extrapolating()) == EXTRAPOLATED
    assert engine_name(trial(Rollout.SYNTHETIC), extrapolating()) == Rollout.SYNTHETIC.value


def test_the_first_two_rollouts_are_extrapolated_and_later_ones_are_synthetic(monkeypatch: pytest.MonkeyPatch) -> None:
    placement, model = extrapolating(), Model()
    engine = rollout_engine(trial(Rollout.GENERATE), placement)
    synthetic: list[Any] = []
    generating = SyntheticRollout.generating
    monkeypatch.setattr(
        SyntheticRollout, "generating", lambda *to, **keys: synthetic.append(to) or generating(*to, **keys)
    )
    prompt = {"input_ids": torch.ones(1, 3), "attention_mask": torch.ones(1, 3)}
    for number in (1, 2, 3, 4):
        with engine.generating(model):
            model.generate(**prompt, generation_config=SimpleNamespace(max_new_tokens=2))
        assert (placement.extrapolator.rollouts, len(synthetic)) == (min(number, 2), max(0, number - 2))


def test_rollouts_of_evaluations_are_counted_apart() -> None:
    placement, model = extrapolating(), Model()
    engine = rollout_engine(trial(Rollout.GENERATE), placement)
    prompt = {"input_ids": torch.ones(1, 3), "attention_mask": torch.ones(1, 3)}
    for number, evaluates in enumerate((True, True, True, False, False, False)):
        with engine.generating(model, evaluates=evaluates):
            model.generate(**prompt, generation_config=SimpleNamespace(max_new_tokens=2))
        assert placement.extrapolator.rollouts == (1, 2, 2, 3, 4, 4)[number]


def test_an_extrapolated_rollout_needs_an_extrapolator() -> None:
    with pytest.raises(ValueError, match="needs a placement with a decode extrapolator"):
        ENGINES[EXTRAPOLATED](CPU)
