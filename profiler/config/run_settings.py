"""The keys that say how a sweep is run; they do not change what a trial is."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

from profiler.config.reading import FieldReader
from profiler.domain.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """How a sweep is run."""

    results_dir: PurePath
    """Results lie in `<results_dir>/<grid>/`."""
    dry_run: bool
    """List the trials with their estimates and run none."""
    resume: bool
    """Skip trials that are answered already."""
    snapshot: bool
    """Write a memory snapshot of each trial, for torch's memory viewer."""
    breakdown: bool
    """Run each measured trial once more with books on its tensors, for its breakdown; simulated ones always have it."""
    timeout_s: float
    """Of one trial, in seconds."""
    jobs: int | None
    """Trials at the same time; None for one a CPU core when simulated, one a GPU when measured, else one."""
    stall_s: float
    """How long a measured trial may go without a new phase, in seconds."""
    warm_up_s: float
    """Limit of the imports in the process that workers are forked from, in seconds."""
    sample_period_s: float | None
    """From one sample of NVIDIA's driver to the next, in a measured trial; None to take none."""
    prune: bool
    """Measured trials: do not run what is bound to run out of memory, because a smaller one did."""
    price_per_hour: float | None
    """Of one GPU, in whatever money; None for no sum."""


RUN_KEYS = (
    "results_dir",
    "dry_run",
    "resume",
    "snapshot",
    "breakdown",
    "timeout_s",
    "jobs",
    "stall_s",
    "warm_up_s",
    "sample_period_s",
    "prune",
    "price_per_hour",
)


_MAX_S = 1e6
"""Eleven days: the kernel waits for at most 2^31 milliseconds."""


def read_run_settings(values: Mapping[str, object]) -> RunSettings:
    """The settings in `values`; keys that are no run key are passed over.

    Raises:
        UsageError: Carries every fault found.
    """
    reader = FieldReader(values)
    settings = RunSettings(
        results_dir=PurePath(reader.text("results_dir", "a folder")),
        dry_run=reader.flag("dry_run"),
        resume=reader.flag("resume"),
        snapshot=reader.flag("snapshot"),
        breakdown=reader.flag("breakdown"),
        timeout_s=reader.number("timeout_s", maximum=_MAX_S),
        jobs=reader.optional_count("jobs"),
        stall_s=reader.number("stall_s", maximum=_MAX_S),
        warm_up_s=reader.number("warm_up_s", maximum=_MAX_S),
        sample_period_s=None
        if values.get("sample_period_s") is None
        else reader.number("sample_period_s", maximum=_MAX_S),
        prune=reader.flag("prune"),
        price_per_hour=None if values.get("price_per_hour") is None else reader.number("price_per_hour"),
    )
    for key in ("timeout_s", "stall_s", "warm_up_s", "sample_period_s"):
        if reader.sound(key) and getattr(settings, key) == 0:
            reader.fail(key, "must be more than 0 seconds")
    if reader.faults:
        raise UsageError(reader.faults)
    return settings
