"""Ways to generate completions, by name: one file per engine."""

from collections.abc import Callable, Mapping

from profiler.domain.trials.trial import Backend, Rollout, TrialSpec
from profiler.training.placement import Placement
from profiler.training.rollouts.synthetic import (
    ExtrapolatedRollout,
    GeneratedRollout,
    RolloutEngine,
    SyntheticRollout,
)
from profiler.training.rollouts.vllm import BlockRollout, VllmRollout

EXTRAPOLATED = "extrapolated"
"""Not a value of the key `rollout`: the engine of `rollout=generate` where decoding steps can be extrapolated."""

ENGINES: Mapping[str, Callable[[Placement], RolloutEngine]] = {
    Rollout.GENERATE.value: lambda _: GeneratedRollout(),
    Rollout.SYNTHETIC.value: SyntheticRollout,
    EXTRAPOLATED: ExtrapolatedRollout,
}


def engine_name(spec: TrialSpec, placement: Placement) -> str:
    """Return the name of the engine that generates the trial's completions on `placement`."""
    if spec.rollout is Rollout.GENERATE and placement.decode_extrapolator() is not None:
        return EXTRAPOLATED
    return spec.rollout.value


def rollout_engine(spec: TrialSpec, placement: Placement) -> RolloutEngine:
    """Make the engine that generates the trial's completions on `placement`."""
    if spec.use_vllm:
        return BlockRollout(spec, placement) if spec.backend is Backend.SIMULATED else VllmRollout(spec)
    return ENGINES[engine_name(spec, placement)](placement)
