"""Results that follow from a model alone, counted once for it: an estimate asks for its tensors hundreds of times."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar

from profiler.analytical.formulas.trial_keys import DecoderShape
from profiler.domain.architecture import Architecture

Result = TypeVar("Result")

_MOST_MODELS = 64
"""Models whose results are kept; a command line names a few."""


def counted_once(formula: Callable[[DecoderShape], Result]) -> Callable[[DecoderShape], Result]:
    """Keep what `formula` returns for each `Architecture`. The arrays of many models are counted each time.

    The result must be immutable, because all callers share it.
    """
    kept = lru_cache(maxsize=_MOST_MODELS)(formula)

    @wraps(formula)
    def counted(architecture: DecoderShape) -> Result:
        return kept(architecture) if isinstance(architecture, Architecture) else formula(architecture)

    return counted
