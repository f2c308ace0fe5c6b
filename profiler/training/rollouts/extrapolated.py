"""Rollout of which few decoding steps run and the others are extrapolated, for a simulated GPU."""

from contextlib import AbstractContextManager
from typing import Any

from profiler.training.placement import Placement
from profiler.training.rollouts.decode_loop import extrapolated_decoding
from profiler.training.rollouts.generate import GeneratedRollout
from profiler.training.rollouts.synthetic import SyntheticRollout


class ExtrapolatedRollout(GeneratedRollout):
    """Extrapolates the decoding steps of rollouts; those beyond the extrapolator's number are synthetic."""

    def __init__(self, placement: Placement) -> None:
        extrapolator = placement.decode_extrapolator()
        if extrapolator is None:
            raise ValueError("an extrapolated rollout needs a placement with a decode extrapolator")
        self._extrapolator = extrapolator
        self._synthetic = SyntheticRollout(placement)
        self._rollouts = 0

    def generating(self, model: Any) -> AbstractContextManager[None]:
        """While active, `model.generate` runs as few decoding steps as the extrapolation needs."""
        self._rollouts += 1
        if self._rollouts > self._extrapolator.most_rollouts:
            return self._synthetic.generating(model)
        return extrapolated_decoding(model, extrapolator=self._extrapolator)
