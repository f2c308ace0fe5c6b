"""A trial as the formulas see models that are loaded next to the policy: no adapters, nothing in 4 bits."""

from typing import cast

from profiler.analytical.formulas.trial_keys import TrialKeys
from profiler.domain.trial import Tuning


def loaded_whole(spec: TrialKeys) -> TrialKeys:
    """Return `spec` as if it had no adapters: trl gives its quantisation and its adapters to the policy only."""
    return spec if spec.tuning is Tuning.FULL else cast("TrialKeys", _Whole(spec))


class _Whole:
    """The keys of a trial, without adapters."""

    tuning = Tuning.FULL
    lora_rank = None
    lora_target_modules = None

    def __init__(self, spec: TrialKeys) -> None:
        self._spec = spec

    def __getattr__(self, name: str) -> object:
        return getattr(self._spec, name)
