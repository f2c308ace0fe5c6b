"""The tables of several folders as those of one: of shards, of machines, or of earlier sweeps."""

import io
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from profiler.config.trials.identity import labels, specification_hash
from profiler.domain.runs.outcome import Status, Versions
from profiler.storage.files.atomic import write_atomically
from profiler.storage.sweep_tables.carried import StoredTrial, joined, stored_trials
from profiler.storage.sweep_tables.spool import tables_to_read
from profiler.storage.tables.schema import OPTIONAL_TABLES, RESULT, TABLES, arrow_schema
from profiler.storage.tables.table_files import TableFile, table_path

_COMPARED = (
    "status",
    *(each.name for each in RESULT if each.unit == "bytes" and each.name.startswith(("peak_", "required_"))),
)
"""Columns of `runs` in which two rows of one trial agree. Times differ in any two runs."""

_MOST_NAMED = 5
"""Most conflicts that are spelled out; the others are counted."""

_SHARD = "shard="


@dataclass(frozen=True, kw_only=True)
class Combined:
    """What was found in several folders."""

    folders: int
    trials: int
    repeated: int = 0
    """Trials that are in several folders."""
    conflicts: tuple[str, ...] = ()
    """A sentence for each trial whose rows differ."""
    versions: str = ""
    """A sentence about specifications that are there with several versions; empty if there are none."""

    def lines(self) -> list[str]:
        """Return sentences for the user."""
        again = f", of which {self.repeated} {'is' if self.repeated == 1 else 'are'} in several folders"
        folders = f"{self.folders} folder{'s' * (self.folders != 1)}"
        found = [f"{self.trials} trials of {folders}{again if self.repeated else ''}."]
        found.extend(self.conflicts[:_MOST_NAMED])
        if len(self.conflicts) > _MOST_NAMED:
            found.append(f"{len(self.conflicts) - _MOST_NAMED} more trials differ between folders.")
        return [*found, self.versions] if self.versions else found


@dataclass(kw_only=True)
class _Chosen:
    """Which folder each trial is taken from."""

    rows: dict[str, dict[str, object]] = field(default_factory=dict)
    """The row of `runs` by trial id, without what is not compared."""
    place: dict[str, int] = field(default_factory=dict)
    """The place of the folder among all, by trial id."""
    repeated: set[str] = field(default_factory=set)
    conflicts: dict[str, str] = field(default_factory=dict)

    def take(self, place: int, runs: pa.Table, folders: Sequence[Path]) -> None:
        """Take the trials of one folder that no earlier folder answers."""
        for row in runs.select(["trial_id", "label", "model", *_COMPARED]).to_pylist():
            trial_id = row["trial_id"]
            if trial_id not in self.rows:
                self.rows[trial_id], self.place[trial_id] = row, place
                continue
            self.repeated.add(trial_id)
            earlier = self.rows[trial_id]
            if not _is_answered(earlier):
                self.rows[trial_id], self.place[trial_id] = row, place
            elif _is_answered(row) and (column := _difference(earlier, row)):
                first = folders[self.place[trial_id]]
                self.conflicts[trial_id] = (
                    f"trial={trial_id}: {row['label']} of {row['model']} has {column} {earlier[column]} in {first} and "
                    f"{row[column]} in {folders[place]}. The row of {first} is used."
                )

    def of(self, place: int) -> list[str]:
        """Return the trials that are taken from one folder."""
        return [trial_id for trial_id, own in self.place.items() if own == place]


def combine_tables(folders: Sequence[Path], into: Path) -> Combined:
    """Write the tables of `folders` into one folder, each trial once, and return what was found.

    A trial that is in several folders is taken from the first that answers it. Trials of different versions have
    different ids, so that all of them are kept.

    Args:
        folders: `<results_dir>/<grid>/` of each; none of them is changed.
        into: The folder to write to; its tables are replaced.

    Raises:
        UsageError: A table is missing or cannot be used.
        StorageError: Writing a file failed.
    """
    opened = [tables_to_read(folder) for folder in folders]
    chosen = _Chosen()
    for place, tables in enumerate(opened):
        chosen.take(place, tables["runs"].rows(), folders)
    about = _about(opened)
    for name, columns in {**TABLES, **OPTIONAL_TABLES}.items():
        schema = arrow_schema(columns, about=about)
        rows = _rows(name, opened, chosen, schema)
        if name == "runs":
            trials = stored_trials(rows)
            rows = _relabelled(rows, trials)
        if rows.num_rows or name in TABLES:
            sink = io.BytesIO()
            pq.write_table(rows.cast(schema), sink)
            write_atomically(table_path(into, name), sink.getvalue())
        else:
            table_path(into, name).unlink(missing_ok=True)
    return Combined(
        folders=len(folders),
        trials=len(chosen.rows),
        repeated=len(chosen.repeated),
        conflicts=tuple(chosen.conflicts.values()),
        versions=_versions_sentence(trials),
    )


def _rows(name: str, opened: Sequence[Mapping[str, TableFile]], chosen: _Chosen, schema: pa.Schema) -> pa.Table:
    """Return the rows of the chosen trials, sorted by trial."""
    parts = [tables[name].rows(chosen.of(place)).cast(schema) for place, tables in enumerate(opened) if name in tables]
    return joined(schema.empty_table(), pa.concat_tables([schema.empty_table(), *parts]))


def _relabelled(rows: pa.Table, trials: Sequence[StoredTrial]) -> pa.Table:
    """Label the trials of all folders together. A row whose keys cannot be read keeps its label."""
    named = dict(zip((trial.trial_id for trial in trials), labels([trial.spec for trial in trials]), strict=True))
    pairs = zip(rows["trial_id"].to_pylist(), rows["label"].to_pylist(), strict=True)
    place = rows.schema.get_field_index("label")
    column = pa.array([named.get(trial_id, label) for trial_id, label in pairs], pa.string())
    return rows.set_column(place, rows.schema.field(place), column)


def _about(opened: Sequence[Mapping[str, TableFile]]) -> dict[str, str]:
    """Return the question, and the command that repeats the sweep if all folders agree on it but for `shard`."""
    found = [tables["runs"].metadata for tables in opened]
    questions = dict.fromkeys(about.get(b"question", b"").decode() for about in found)
    commands = dict.fromkeys(_without_shard(about.get(b"command", b"").decode()) for about in found)
    return {
        "question": next(filter(None, questions), ""),
        "command": next(iter(commands)) if len(commands) == 1 else "",
    }


def _without_shard(command: str) -> str:
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    kept = [word for word in words if not word.startswith(_SHARD)]
    return command if len(kept) == len(words) else shlex.join(kept)


def _is_answered(row: Mapping[str, object]) -> bool:
    return Status(str(row["status"])).answered


def _difference(one: Mapping[str, object], other: Mapping[str, object]) -> str:
    """Return the first column in which two rows of a trial differ; empty if they agree."""
    return next((column for column in _COMPARED if one[column] != other[column]), "")


def _versions_sentence(trials: Sequence[StoredTrial]) -> str:
    """Return which versions tell trials of equal specifications apart; empty if there are no such trials."""
    of_spec: dict[str, list[Versions]] = defaultdict(list)
    for trial in trials:
        of_spec[specification_hash(trial.spec)].append(trial.versions)
    several = [versions for versions in of_spec.values() if len(versions) > 1]
    if not several:
        return ""
    every = [version for versions in several for version in versions]
    differ = [
        f"{each.name} {' and '.join(sorted(found))}"
        for each in fields(Versions)
        if len(found := {str(getattr(version, each.name) or "none") for version in every}) > 1
    ]
    why = ", ".join(differ) or "another card, driver or config.json"
    are = "configuration is" if len(several) == 1 else "configurations are"
    return f"{len(several)} {are} there several times, with different versions ({why}); each is kept."
