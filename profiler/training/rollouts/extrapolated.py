"""Rollout of which few decoding steps run and the others are extrapolated, for a simulated GPU."""

from contextlib import AbstractContextManager
from typing import Any

from profiler.training.placement import Placement
from profiler.training.rollouts.decode_loop import extrapolated_decoding
from profiler.training.rollouts.generate import GeneratedRollout
from profiler.training.rollouts.synthetic import SyntheticRollout

_EXTRAPOLATED = 2
"""Rollouts whose whole growth is in the trace: one before and one after the optimizer states exist.

Later ones would grow like the second, in segments that exist already; they only fill their cache.
"""


class ExtrapolatedRollout(GeneratedRollout):
    """Extrapolates the decoding steps of the first rollouts; later rollouts are synthetic."""

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
        if self._rollouts > _EXTRAPOLATED:
            return self._synthetic.generating(model)
        return extrapolated_decoding(model, extrapolator=self._extrapolator)
