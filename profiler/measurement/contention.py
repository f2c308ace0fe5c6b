"""Whether other programs took memory of the GPU while a trial ran: judged by memory, not by process numbers.

Containers show the host's process numbers or none, so who is ours is often not known; how much memory is not ours is.
"""

import itertools
from collections.abc import Iterable, Sequence

from profiler.domain.outcome import Sample
from profiler.domain.units import MIB, gib_text

EMPTY_BYTES = 512 * MIB
"""A GPU with no more than this in use counts as empty: drivers, displays and persistence daemons take some of it."""

GROWN_BYTES = 256 * MIB
"""Growth of the others' memory that does not count, where the driver tells theirs from ours."""

UNEXPLAINED_BYTES = 2048 * MIB
"""Memory beside torch's that does not count, where the driver tells nobody's apart: the CUDA context, loaded kernels
and libraries' own memory stay well below (0.1 to 0.8 GiB in published out-of-memory messages)."""


def taken_by_others(samples: Sequence[Sample], *, before_bytes: int | None) -> str:
    """A sentence if other programs' memory grew during the trial; empty if not, or if the driver does not tell.

    One sample does not count: device and process are read one after the other, and memory may be freed in between.

    Args:
        samples: Those with both readings are looked at.
        before_bytes: What others had before the trial; None is taken for nothing.
    """
    others = [
        one.device_used_bytes - one.process_used_bytes
        for one in samples
        if one.device_used_bytes is not None and one.process_used_bytes is not None
    ]
    lasting = max((min(pair) for pair in itertools.pairwise(others)), default=0)
    grown = lasting - (before_bytes or 0)
    return _sentence(grown) if grown > GROWN_BYTES else ""


def unexplained(beside_torch_bytes: Iterable[int]) -> str:
    """The same, from what was in use at phases' borders beside torch's memory and what others had before."""
    most = max(beside_torch_bytes, default=0)
    return _sentence(most) if most > UNEXPLAINED_BYTES else ""


def _sentence(size_bytes: int) -> str:
    return (
        f"Another program took {gib_text(size_bytes, 2)} of the GPU's memory while the trial ran, so its figures are "
        "not the trial's own."
    )
