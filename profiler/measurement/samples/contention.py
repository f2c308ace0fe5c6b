"""Detect other programs that allocated GPU memory during a trial, by memory and not by process numbers.

In containers the driver lists the host's process numbers or none, so it is often unknown which process is the trial's.
The amount of memory that is not the trial's is known.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from profiler.domain.runs.readings import Sample
from profiler.domain.units import MIB, gib_text

EMPTY_BYTES = 512 * MIB
"""A GPU with at most this much memory in use counts as empty: drivers, displays and daemons use some."""

GROWN_BYTES = 256 * MIB
"""Growth of other programs' memory up to this size is ignored, if the driver separates it from the trial's."""

UNEXPLAINED_BYTES = 2048 * MIB
"""Memory beyond torch's up to this size is ignored, if the driver does not separate processes. The CUDA context, loaded
kernels and libraries' own memory stay well below (0.1 to 0.8 GiB in published out-of-memory messages), except for
cuDNN's plans in long generated rollouts."""


@dataclass(frozen=True, kw_only=True)
class PhaseEnd:
    """Readings of the GPU at the end of a phase."""

    context_bytes: int
    """Memory in use minus torch's and minus the others' before the trial: CUDA's context, kernels and libraries."""
    others_bytes: int | None
    """Memory in use minus the trial's own process; None if the driver does not say which process that is."""


def contention(samples: Sequence[Sample], phase_ends: Sequence[PhaseEnd], *, before_bytes: int | None) -> str:
    """Return a sentence if another program's memory grew during the trial; empty if not, or if this is unknown.

    The memory of the trial's own process decides if the driver reports it, because the context may grow by gigabytes
    (cuDNN builds a plan for each new key length). Without it, only memory beyond any plausible context counts.

    Args:
        samples: Readings while the trial ran.
        phase_ends: Readings at the ends of phases, in order.
        before_bytes: Memory of others before the trial; None counts as 0.
    """
    seen = [end.others_bytes for end in phase_ends if end.others_bytes is not None]
    grown = max(_lasting(_others_in(samples)), _lasting(seen)) - (before_bytes or 0)
    if grown > GROWN_BYTES:
        return _sentence(grown)
    unexplained = max((end.context_bytes for end in phase_ends if end.others_bytes is None), default=0)
    return _sentence(unexplained) if unexplained > UNEXPLAINED_BYTES else ""


def _others_in(samples: Iterable[Sample]) -> list[int]:
    return [
        one.device_used_bytes - one.process_used_bytes
        for one in samples
        if one.device_used_bytes is not None and one.process_used_bytes is not None
    ]


def _lasting(others_bytes: Sequence[int]) -> int:
    """Return the highest level that two readings in a row reached.

    A single reading does not count: device and process are read one after the other, and memory may be freed between.
    """
    return max((min(pair) for pair in itertools.pairwise(others_bytes)), default=0)


def _sentence(size_bytes: int) -> str:
    return (
        f"Another program took {gib_text(size_bytes, 2)} of the GPU's memory while the trial ran, so its figures are "
        "not the trial's own."
    )
