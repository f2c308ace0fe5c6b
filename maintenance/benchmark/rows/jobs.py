"""A row as the project's own job, its model, and whether its peaks are possible."""

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from maintenance.benchmark.rows.sent import faults_of_sent
from profiler.config.models.architecture import read_architecture
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.errors import Fault, UsageError
from profiler.domain.models.builtin_models import find_builtin
from profiler.domain.runs.shared import Row, RowOrigin, impossible
from profiler.domain.trials.trial import TrialSpec
from profiler.share import rows as shared_rows

FOLDER = Path(__file__).parents[3] / "benchmark"
"""Where the set is."""


@cache
def other_models() -> Mapping[str, Mapping[str, object]]:
    """Return the `config.json` of models of the set that are not built in."""
    found: Mapping[str, Mapping[str, object]] = json.loads((FOLDER / "models.json").read_text())
    return found


def config_of(model: str) -> Mapping[str, object]:
    """Return the `config.json` of a model of the set.

    Raises:
        UsageError: The set has no model of that name.
    """
    builtin = find_builtin(model)
    if builtin is not None:
        return builtin.config
    if model not in other_models():
        hint = "Add its config.json to benchmark/models.json."
        raise UsageError([Fault(key="model", found=model, problem="has no configuration in the set", hint=hint)])
    return other_models()[model]


@cache
def architecture_of(model: str) -> Architecture:
    """Return the architecture of a model of the set."""
    return read_architecture(config_of(model), model=model)


def spec_of(row: Row) -> TrialSpec:
    """Return a row as the project's own job, on a simulated card.

    Raises:
        UsageError: The job has something that no key can say, or a key is refused.
    """
    return shared_rows.spec_of(row, architecture_of)


def least_bytes(row: Row) -> int:
    """Return a lower bound of the job's memory on one card: the weights that stay there."""
    return shared_rows.least_bytes(row.job, architecture_of(str(row.job["model"])))


def faults_of(row: Row) -> list[Fault]:
    """Return what is impossible in a row: peaks that break physics, or a source that nobody can look up."""
    if row.origin is RowOrigin.SENT:
        return faults_of_sent(row)
    found = list(impossible(row, least_bytes=least_bytes(row)))
    for name in ("url", "commit", "licence"):
        if not getattr(row.source, name):
            found.append(Fault(key=row.row_id, found="", problem=f"has no {name} of its source"))
    if row.origin is RowOrigin.OTHERS and not row.source.url.startswith("https://"):
        found.append(Fault(key=row.row_id, found=row.source.url, problem="must have an address that others can open"))
    return found


def checked(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Return the rows, by their names.

    Raises:
        UsageError: A row is impossible, or two have one name.
    """
    by_name: dict[str, Row] = {}
    faults: list[Fault] = []
    for row in rows:
        if row.row_id in by_name:
            faults.append(Fault(key=row.row_id, found="a second row", problem="has the name of another one"))
        by_name[row.row_id] = row
        faults += faults_of(row)
    if faults:
        raise UsageError(faults)
    return tuple(by_name[name] for name in sorted(by_name))
