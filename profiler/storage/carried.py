"""Rows that are carried over from existing tables, because their records are not in the folder.

A folder can have tables without records: git keeps only the tables of results, and a copy may leave out the records.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from profiler.config.identity import ADDED_KEYS, spec_from_mapping, trial_id
from profiler.domain.builtin_models import find_builtin
from profiler.domain.errors import Fault, UsageError
from profiler.domain.outcome import Status, Versions
from profiler.domain.trial import SPEC_KEYS, TrialSpec
from profiler.storage.schema import OPTIONAL_TABLES, TABLES
from profiler.storage.table_files import read_table_file, table_path

_ANSWERED = frozenset(status.value for status in Status if status.answered)

CurrentId = Callable[[TrialSpec, Versions], str | None]
"""Returns the id that an emulated or simulated trial would have if it ran now; None if unknown."""


@dataclass(frozen=True, kw_only=True)
class StoredTrial:
    """A trial of a table, with everything that its id is made of."""

    trial_id: str
    spec: TrialSpec
    versions: Versions
    answered: bool


@dataclass(frozen=True, kw_only=True)
class Outdated:
    """Emulated and simulated trials that have another id now: this program or the model's `config.json` has changed."""

    replaced: frozenset[str] = field(default_factory=frozenset)
    """Trials that ran again, with an answer."""
    left: frozenset[str] = field(default_factory=frozenset)
    """The others."""


def stored_rows(folder: Path) -> Mapping[str, pa.Table]:
    """Return the tables of a folder, by name.

    Raises:
        UsageError: Some of them cannot be used; carries every fault found.
    """
    tables: dict[str, pa.Table] = {}
    faults: list[Fault] = []
    for name, columns in {**TABLES, **OPTIONAL_TABLES}.items():
        path = table_path(folder, name)
        try:
            if path.exists():
                tables[name] = read_table_file(path, columns)
        except UsageError as error:
            faults.extend(error.faults)
    if faults:
        raise UsageError(faults)
    return tables


def without(table: pa.Table, trial_ids: Collection[str]) -> pa.Table:
    """Return the rows of all other trials."""
    listed = pa.array(sorted(trial_ids), pa.string())
    return table.filter(pc.invert(pc.is_in(table["trial_id"], value_set=listed)))


def stored_trials(runs: pa.Table) -> list[StoredTrial]:
    """Return the trials of a `runs` table; skip rows whose keys cannot be read."""
    found = []
    for row in runs.to_pylist():
        try:
            spec = spec_from_mapping(_keys(row))
        except ValueError:
            continue
        versions = Versions(**{each.name: row[f"{each.name}_version"] for each in fields(Versions)})
        answered = row["status"] in _ANSWERED
        found.append(StoredTrial(trial_id=row["trial_id"], spec=spec, versions=versions, answered=answered))
    return found


def _keys(row: Mapping[str, object]) -> dict[str, object]:
    keys = {key: row[key] for key in SPEC_KEYS if row[key] is not None or key not in ADDED_KEYS}
    targets = keys["lora_target_modules"]
    return {**keys, "lora_target_modules": targets.split(",") if isinstance(targets, str) else None}


def builtin_id(spec: TrialSpec, versions: Versions) -> str | None:
    """`CurrentId` for trials that depend on no file."""
    if find_builtin(spec.model) is None or spec.dataset is not None:
        return None
    return trial_id(spec, versions)


def outdated(trials: Iterable[StoredTrial], current_id: CurrentId) -> Outdated:
    """Return the emulated and simulated trials that have another id now. That of a measured trial never changes."""
    repeatable = [trial for trial in trials if trial.spec.backend.names_its_card]
    names = {trial.trial_id: current_id(trial.spec, trial.versions) for trial in repeatable}
    old = {name for name, current in names.items() if current is not None and current != name}
    answered = {trial.trial_id for trial in repeatable if trial.answered}
    replaced = frozenset(name for name in old if names[name] in answered)
    return Outdated(replaced=replaced, left=frozenset(old) - replaced)


def joined(new: pa.Table, carried: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of `new` and of the carried tables, sorted by trial."""
    with_rows = [table for table in carried if table.num_rows]
    if not with_rows:
        return new
    tables = [new, *(table.cast(new.schema) for table in with_rows)]
    whole = pa.concat_tables(tables)
    return whole.take(pc.sort_indices(whole, [("trial_id", "ascending")])).combine_chunks()
