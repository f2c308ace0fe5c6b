"""Rows that are carried over from existing tables, because their records are not in the folder.

A folder can have tables without records: git keeps only the tables of results, and a copy may leave out the records.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from profiler.config.trials.identity import ADDED_KEYS, spec_from_mapping, trial_id
from profiler.domain.models.builtin_models import find_builtin
from profiler.domain.runs.outcome import Status, Versions
from profiler.domain.trials.trial import SPEC_KEYS, TrialSpec

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


@dataclass(frozen=True, kw_only=True)
class Written:
    """Rows of the written tables that do not come from the records, and records without rows."""

    carried: int = 0
    """Trials without a record in the folder, whose rows were carried over from the previous tables."""
    replaced: int = 0
    """Emulated or simulated trials whose rows were replaced, because they ran again after a change."""
    outdated: int = 0
    """Emulated or simulated trials in the tables that would have another result now."""
    left_out: tuple[str, ...] = ()
    """A sentence for each record that could not be written into the tables."""

    def lines(self, folder: Path) -> list[str]:
        """Return sentences for the user."""
        found = []
        if self.carried:
            rows, their = ("row is", "its record is") if self.carried == 1 else ("rows are", "their records are")
            found.append(f"{self.carried} {rows} carried over from the tables in {folder}: {their} not here.")
        if self.replaced:
            rows = "row is" if self.replaced == 1 else "rows are"
            found.append(f"{self.replaced} {rows} replaced by the same trials, which ran again after a change.")
        if self.outdated:
            rows = "row is" if self.outdated == 1 else "rows are"
            found.append(
                f"{self.outdated} {rows} from before a change of this program or of a config.json; the sweep that made "
                "them runs them again."
            )
        return found


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


def joined(new: pa.Table, carried: pa.Table | None) -> pa.Table:
    """Return the rows of `new` and the carried ones, sorted by trial."""
    if carried is None or not carried.num_rows:
        return new
    whole = pa.concat_tables([new, carried.cast(new.schema)])
    return whole.take(pc.sort_indices(whole, [("trial_id", "ascending")])).combine_chunks()
