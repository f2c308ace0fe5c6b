"""Samples of a run of unknown length, in memory of known size."""

from collections.abc import Callable
from dataclasses import replace
from typing import Generic, TypeVar

from profiler.domain.runs.monitored import HostSample
from profiler.domain.runs.readings import Sample

Kind = TypeVar("Kind")

MOST_SAMPLES = 20_000


class BoundedSamples(Generic[Kind]):
    """At most `most` samples. When there are more, each two neighbours become one, and later samples do as well."""

    def __init__(self, merge: Callable[[Kind, Kind], Kind], *, most: int = MOST_SAMPLES) -> None:
        """`merge` returns one sample in place of two that follow each other."""
        self._merge = merge
        self._most = most
        self._kept: list[Kind] = []
        self._waiting: Kind | None = None
        self._count_of_waiting = 0
        self.stride = 1
        """Readings in one sample."""

    def append(self, sample: Kind) -> None:
        """Add a reading."""
        self._waiting = sample if self._waiting is None else self._merge(self._waiting, sample)
        self._count_of_waiting += 1
        if self._count_of_waiting < self.stride:
            return
        self._kept.append(self._waiting)
        self._waiting, self._count_of_waiting = None, 0
        if len(self._kept) >= self._most and len(self._kept) % 2 == 0:
            pairs = zip(self._kept[::2], self._kept[1::2], strict=False)
            self._kept = [self._merge(one, other) for one, other in pairs]
            self.stride *= 2

    def samples(self) -> tuple[Kind, ...]:
        """Return the samples so far, in order."""
        return (*self._kept, *(() if self._waiting is None else (self._waiting,)))


def merged_sample(one: Sample, other: Sample) -> Sample:
    """Return one sample for two: the highest memory, with the phase it was read in, and the means of the rest."""
    higher = max(one, other, key=lambda each: each.device_used_bytes or 0)
    utilisation = _mean(one.utilisation_percent, other.utilisation_percent)
    clock = _mean(one.sm_clock_mhz, other.sm_clock_mhz)
    return replace(
        higher,
        time_s=one.time_s,
        process_used_bytes=_highest(one.process_used_bytes, other.process_used_bytes),
        utilisation_percent=None if utilisation is None else round(utilisation),
        power_watts=_mean(one.power_watts, other.power_watts),
        sm_clock_mhz=None if clock is None else round(clock),
    )


def merged_host_sample(one: HostSample, other: HostSample) -> HostSample:
    """Return one sample for two: the highest of each value."""
    return HostSample(
        time_s=one.time_s,
        processes=max(one.processes, other.processes),
        tree_bytes=max(one.tree_bytes, other.tree_bytes),
        used_bytes=_highest(one.used_bytes, other.used_bytes),
    )


def _highest(one: int | None, other: int | None) -> int | None:
    return max((value for value in (one, other) if value is not None), default=None)


def _mean(one: float | None, other: float | None) -> float | None:
    known = [value for value in (one, other) if value is not None]
    return sum(known) / len(known) if known else None
