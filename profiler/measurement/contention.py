"""Whether other programs took memory of the GPU while a trial ran: judged by memory, not by process numbers.

Containers show the host's process numbers or none, so who is ours is often not known; how much memory is not ours is.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from profiler.domain.outcome import Sample
from profiler.domain.units import MIB, gib_text

EMPTY_BYTES = 512 * MIB
"""A GPU with no more than this in use counts as empty: drivers, displays and persistence daemons take some of it."""

GROWN_BYTES = 256 * MIB
"""Growth of the others' memory that does not count, where the driver tells theirs from ours."""

UNEXPLAINED_BYTES = 2048 * MIB
"""Memory beyond torch's that does not count, where the driver tells nobody's apart: the CUDA context, loaded kernels
and libraries' own memory stay well below (0.1 to 0.8 GiB in published out-of-memory messages), but for cuDNN's plans in
long generated rollouts."""


@dataclass(frozen=True, kw_only=True)
class BorderReading:
    """The GPU where a phase ends and the trial stands still."""

    context_bytes: int
    """In use, less torch's, less what others had before the trial: CUDA's context, kernels and libraries."""
    others_bytes: int | None
    """In use, less the trial's own process; None where the driver does not say which process is ours."""


def contention(samples: Sequence[Sample], borders: Sequence[BorderReading], *, before_bytes: int | None) -> str:
    """Return a sentence if another program's memory grew during the trial; empty if not, or if nobody can tell.

    The figure of our own process decides wherever the driver gives it, because the context may grow by gigabytes (cuDNN
    builds a plan for each new key length). Without it, only what no context explains counts.

    Args:
        samples: Readings while the trial ran.
        borders: Readings where phases ended, in order.
        before_bytes: What others had before the trial; None is taken for nothing.
    """
    seen = [border.others_bytes for border in borders if border.others_bytes is not None]
    grown = max(_lasting(_others_in(samples)), _lasting(seen)) - (before_bytes or 0)
    if grown > GROWN_BYTES:
        return _sentence(grown)
    unexplained = max((border.context_bytes for border in borders if border.others_bytes is None), default=0)
    return _sentence(unexplained) if unexplained > UNEXPLAINED_BYTES else ""


def _others_in(samples: Iterable[Sample]) -> list[int]:
    return [
        one.device_used_bytes - one.process_used_bytes
        for one in samples
        if one.device_used_bytes is not None and one.process_used_bytes is not None
    ]


def _lasting(others_bytes: Sequence[int]) -> int:
    """The highest level that two readings in a row reached.

    One does not count: device and process are read one after the other, and memory may be freed in between.
    """
    return max((min(pair) for pair in itertools.pairwise(others_bytes)), default=0)


def _sentence(size_bytes: int) -> str:
    return (
        f"Another program took {gib_text(size_bytes, 2)} of the GPU's memory while the trial ran, so its figures are "
        "not the trial's own."
    )
