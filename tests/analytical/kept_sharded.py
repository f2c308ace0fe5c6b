"""What the replays of several GPUs share in tests: a program that is prepared, and the kept emulated trials."""

import json
from collections.abc import Collection
from pathlib import Path

import pandas as pd

from maintenance.samples.sampling import architecture_of
from profiler.analytical.estimate import estimate, estimate_with_replay
from profiler.analytical.replayed.requests import Requests
from profiler.analytical.replayed.sharing import Alone
from profiler.analytical.replayed.trial import Program, has_replay
from profiler.config.models.lookup import builtin_architecture
from profiler.config.trials.specification import parse_point
from profiler.domain.trials.trial import DistributedType, TrialSpec

_SHARDED = Path(__file__).parents[2] / "results" / "reference" / "sharded"


def prepared(spec: TrialSpec) -> tuple[Alone, Requests]:
    """Return how the GPU of a trial has its model, and its requests, before the first step."""
    program = Program(Requests(), spec, builtin_architecture(spec.model))
    program.sharing.load()
    program.sharing.share()
    return program.sharing, program.requests


def has_the_bound(spec: TrialSpec) -> bool:
    """Return whether nothing of a trial is replayed, so that its reserved memory is the bound."""
    shape = builtin_architecture(spec.model)
    return not has_replay(spec) and estimate_with_replay(spec, shape) == estimate(spec, shape)


def reserved_errors(
    kinds: Collection[DistributedType], stages: Collection[int | None] = (None,)
) -> tuple[list[float], list[float]]:
    """Return the errors of replays, and those of the bound, for the trials of seed 2053 that are replayed."""
    lines = (_SHARDED / "sampled.jsonl").read_text().splitlines()[1:]
    errors, bounds = list[float](), list[float]()
    for row in pd.read_csv(_SHARDED / "rows.csv").to_dict(orient="records"):
        keys = {key: value for key, value in json.loads(lines[row["trial"]]).items() if value is not None}
        spec = parse_point(keys, architecture_of=architecture_of)
        is_asked = spec.distributed_type in kinds and spec.zero_stage in stages
        if row["status"] == "ok" and is_asked and has_replay(spec):
            shape, reserved = architecture_of(spec.model), row["emulated_reserved_bytes"]
            errors.append(estimate_with_replay(spec, shape).peak_reserved_bytes / reserved - 1)
            bounds.append(estimate(spec, shape).peak_reserved_bytes / reserved - 1)
    return errors, bounds
