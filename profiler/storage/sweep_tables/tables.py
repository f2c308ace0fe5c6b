"""Tables of a grid: assembled from records, written atomically, read as pandas frames."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from profiler.config.trials.identity import labels
from profiler.domain.runs.outcome import Estimate, TrialRecord, Versions
from profiler.domain.trials.trial import TrialSpec
from profiler.storage.files.atomic import put_all_in_place, temporary_next_to, write_errors
from profiler.storage.sweep_tables.carried import (
    CurrentId,
    StoredTrial,
    Written,
    builtin_id,
    joined,
    outdated,
    stored_trials,
    without,
)
from profiler.storage.sweep_tables.spool import TRIALS_AT_ONCE, Spool, replacing_tables, tables_to_read, writing_tables
from profiler.storage.tables.rows import RUNS, checked_rows
from profiler.storage.tables.run_tables import read_samples
from profiler.storage.tables.schema import OPTIONAL_TABLES, TABLES, arrow_schema
from profiler.storage.tables.table_files import TableFile, open_tables, table_path

__all__ = ["EstimatesOf", "Tables", "Written", "assemble_tables", "read_tables", "table_path", "write_tables"]

EstimatesOf = Callable[[Mapping[str, TrialSpec]], Mapping[str, Estimate]]
"""Returns the estimates of some trials, by their ids."""

SAMPLES = "samples"

_PANDAS = {
    # pandas' nullable types keep an integer column with nulls an integer column.
    pa.int64(): pd.Int64Dtype(),
    pa.float64(): pd.Float64Dtype(),
    pa.bool_(): pd.BooleanDtype(),
    pa.string(): pd.StringDtype(),
}


@dataclass(frozen=True, kw_only=True)
class Tables:
    """Stored tables of one grid; `profiler.storage.tables.schema` documents the columns."""

    runs: pd.DataFrame
    phases: pd.DataFrame
    breakdown: pd.DataFrame
    optional: Mapping[str, TableFile | None]
    """The files of tables with many rows per trial: `largest` and the optional ones. Each is read when asked for."""
    question: str
    """The question of the grid; may be empty."""
    command: str
    """The command that repeats the sweep; may be empty."""

    @property
    def largest(self) -> pd.DataFrame:
        """One row per trial and group of tensors at its peak."""
        return self._rows("largest", None)

    @property
    def steps(self) -> pd.DataFrame:
        """One row per phase of an optimizer step; empty if nothing was measured."""
        return self._rows("steps", None)

    @property
    def samples(self) -> pd.DataFrame:
        """One row per sample; empty if nothing was measured."""
        return self._rows("samples", None)

    @property
    def shape(self) -> pd.DataFrame:
        """One row per instant and category; empty if nothing was simulated."""
        return self._rows("shape", None)

    def shape_of(self, trial_ids: Collection[str]) -> pd.DataFrame:
        """Return the rows of `shape` of these trials."""
        return self._rows("shape", trial_ids)

    def _rows(self, name: str, trial_ids: Collection[str] | None) -> pd.DataFrame:
        file = self.optional[name]
        if file is None:
            return _frame(arrow_schema(OPTIONAL_TABLES[name], about={}).empty_table())
        return _frame(file.rows(trial_ids))


def write_tables(
    folder: Path,
    records: Sequence[TrialRecord],
    estimates: Mapping[str, Estimate],
    *,
    question: str = "",
    command: str = "",
    current_id: CurrentId = builtin_id,
) -> Written:
    """Write the tables of a few records, as `assemble_tables` does; labels are those of the records.

    The bytes do not depend on the order of `records`. If rows are carried over, all trials get new labels.

    Args:
        folder: `<results_dir>/<grid>/`; created if missing.
        records: Every record of the grid.
        estimates: By trial id; trials without one get nulls.
        question: The question of the grid, shown above the report.
        command: The command that repeats the sweep.
        current_id: Returns the id that a simulated trial would have now.

    Raises:
        UsageError: An existing table cannot be read; nothing was written.
        StorageError: Writing a file failed.
    """
    in_order = sorted(records, key=lambda record: record.trial_id)
    about = {"question": question, "command": command}
    return _assemble(folder, in_order, lambda _: estimates, about=about, current_id=current_id, relabels=False)


def assemble_tables(
    folder: Path,
    records: Iterable[TrialRecord],
    estimates_of: EstimatesOf,
    *,
    question: str = "",
    command: str = "",
    current_id: CurrentId = builtin_id,
) -> Written:
    """Write a parquet file for each of `TABLES` into `folder`, each whole or not at all.

    A table of `OPTIONAL_TABLES` exists only if it has rows. All trials get labels that tell them apart.

    Rows of trials that have no record are carried over from the existing tables. A trial that was simulated again under
    another id, because the simulation or its model has changed, is replaced. A record that contradicts itself or does
    not fit the columns is left out. Records are taken one after the other: only specifications stay in memory.

    Args:
        folder: `<results_dir>/<grid>/`; created if missing.
        records: Every record of the grid, by trial id.
        estimates_of: Returns the estimates of some trials by their ids; trials without one get nulls.
        question: The question of the grid, shown above the report.
        command: The command that repeats the sweep.
        current_id: Returns the id that a simulated trial would have now.

    Raises:
        UsageError: An existing table cannot be read; nothing was written.
        StorageError: Writing a file failed.
    """
    about = {"question": question, "command": command}
    return _assemble(folder, records, estimates_of, about=about, current_id=current_id, relabels=True)


def _assemble(
    folder: Path,
    records: Iterable[TrialRecord],
    estimates_of: EstimatesOf,
    *,
    about: Mapping[str, str],
    current_id: CurrentId,
    relabels: bool,
) -> Written:
    with writing_tables(folder), Spool(folder, about) as spool, ExitStack() as temporaries:
        stored = open_tables(folder, required=False)
        stored_runs = stored["runs"].rows() if "runs" in stored else None
        read = _read(records, estimates_of, spool)
        written = {trial.trial_id for trial in read.trials}
        others = stored_trials(without(stored_runs, written)) if stored_runs is not None else []
        old = outdated([*read.trials, *others], current_id)
        others = [trial for trial in others if trial.trial_id not in old.replaced]
        carried = _Carried(stored=stored, runs=None, without=frozenset(written | old.replaced))
        if stored_runs is not None:
            carried.runs = without(stored_runs, carried.without)
        new = _New(
            spool=spool,
            trial_ids=frozenset(written - old.replaced),
            sampled=frozenset(read.sampled - old.replaced),
            measured=frozenset(read.measured),
            labels=_labels(read, others, old.replaced, relabels=relabels),
        )
        if others and carried.runs is not None:
            carried.runs = _with_labels(carried.runs, new.labels)
        made = {
            table_path(folder, name): temporaries.enter_context(
                _made(folder, name, new, carried, about, is_whole=not old.replaced)
            )
            for name in {**TABLES, **OPTIONAL_TABLES}
        }
        with replacing_tables(folder):
            put_all_in_place([(temporary, path) for path, temporary in made.items() if temporary is not None])
            for path, temporary in made.items():
                if temporary is None:
                    path.unlink(missing_ok=True)
    return Written(
        carried=carried.runs.num_rows if carried.runs is not None else 0,
        replaced=len(old.replaced.intersection(_ids(stored_runs))) if stored_runs is not None else 0,
        outdated=len(old.left),
        left_out=read.left_out(folder, new.labels),
    )


@dataclass(kw_only=True)
class _Read:
    """What is kept in memory of the records."""

    trials: list[StoredTrial] = field(default_factory=list)
    """Those whose rows were written."""
    sampled: set[str] = field(default_factory=set)
    """Those during which the driver was sampled."""
    measured: set[str] = field(default_factory=set)
    """Those with rows of steps."""
    specs: dict[str, TrialSpec] = field(default_factory=dict)
    """Of all records, by trial id."""
    problems: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Labels of records without rows, and why they have none."""

    def left_out(self, folder: Path, named: Mapping[str, str]) -> tuple[str, ...]:
        """Return a sentence for each record without rows, with new labels by trial id."""
        found = []
        for trial_id, (label, reason) in self.problems.items():
            path = folder / "records" / f"{trial_id}.json"
            found.append(
                f"trial={trial_id}: {named.get(trial_id, label)} of {self.specs[trial_id].model} is left out of the "
                f"tables, because {reason}. Move {path} away to remove it."
            )
        return tuple(found)


def _read(records: Iterable[TrialRecord], estimates_of: EstimatesOf, spool: Spool) -> _Read:
    """Put the rows of the records into the spool, and return what is known of them."""
    found = _Read()
    versions: dict[Versions, Versions] = {}
    waiting = iter(records)
    while some := list(islice(waiting, TRIALS_AT_ONCE)):
        estimates = estimates_of({record.trial_id: record.spec for record in some})
        for record in some:
            found.specs[record.trial_id] = record.spec
            rows = checked_rows(record, estimates.get(record.trial_id))
            if isinstance(rows, str):
                found.problems[record.trial_id] = (record.label, rows)
                continue
            spool.add(record, rows)
            if rows["steps"]:
                found.measured.add(record.trial_id)
            measured = record.outcome.measured
            if measured is not None and measured.sample_period_s is not None:
                found.sampled.add(record.trial_id)
            found.trials.append(
                StoredTrial(
                    trial_id=record.trial_id,
                    spec=record.spec,
                    versions=versions.setdefault(record.versions, record.versions),
                    answered=record.outcome.status.answered,
                )
            )
    spool.finish()
    return found


def _labels(
    read: _Read, others: Sequence[StoredTrial], replaced: Collection[str], *, relabels: bool
) -> Mapping[str, str]:
    """Return new labels by trial id: of all trials if rows are carried over, of all records if that is asked for."""
    if others:
        kept = [trial for trial in (*read.trials, *others) if trial.trial_id not in replaced]
        named = {trial.trial_id: trial.spec for trial in kept}
    else:
        named = read.specs if relabels else {}
    return dict(zip(named, labels(list(named.values())), strict=True)) if named else {}


def _with_labels(runs: pa.Table, named: Mapping[str, str]) -> pa.Table:
    """Return rows of `runs` with new labels. A row whose keys cannot be read keeps its label."""
    rows = zip(runs["trial_id"].to_pylist(), runs["label"].to_pylist(), strict=True)
    column = pa.array([named.get(trial_id, label) for trial_id, label in rows], pa.string())
    place = runs.schema.get_field_index("label")
    return runs.set_column(place, runs.schema.field(place), column)


@dataclass(kw_only=True)
class _New:
    """The rows that come from records."""

    spool: Spool
    trial_ids: frozenset[str]
    """Without those that are replaced."""
    sampled: frozenset[str]
    measured: frozenset[str]
    labels: Mapping[str, str]
    """New labels by trial id; empty to leave them."""


@dataclass(kw_only=True)
class _Carried:
    """The tables from before, whose rows are kept unless their trial is written anew."""

    stored: Mapping[str, TableFile]
    runs: pa.Table | None
    """The rows of `runs` that are kept; None if there was no such table."""
    without: frozenset[str]
    """Trials that are written anew or replaced."""

    def rows(self, name: str, trial_ids: Collection[str]) -> pa.Table:
        """Return the kept rows of these trials."""
        if name == "runs" and self.runs is not None:
            return self.runs.filter(pc.is_in(self.runs["trial_id"], value_set=pa.array(sorted(trial_ids), pa.string())))
        return self.stored[name].rows(trial_ids)

    def kept(self, name: str, new: "_New", folder: Path) -> frozenset[str]:
        """Return the trials of which rows of a table are carried over."""
        if name not in self.stored:
            return frozenset()
        lost = _without_samples(folder, new.sampled) if name == SAMPLES else frozenset()
        return frozenset(self.stored[name].trial_ids() - (self.without - lost))


def _portions(name: str, new: _New, carried: _Carried, kept: frozenset[str], folder: Path) -> Iterator[pa.Table]:
    """Yield the rows of a table in order of their trials, so few at a time that memory does not depend on the sweep."""
    in_order = new.spool.rows(name) if name != SAMPLES else None
    trial_ids = sorted(new.trial_ids | kept)
    for start in range(0, len(trial_ids), TRIALS_AT_ONCE):
        some = trial_ids[start : start + TRIALS_AT_ONCE]
        if in_order is None:
            rows = read_samples(folder, [trial_id for trial_id in some if trial_id in new.measured])
        else:
            rows = in_order.upto(some[-1])
            rows = rows.filter(pc.is_in(rows["trial_id"], value_set=pa.array(some, pa.string())))
        if name == RUNS and new.labels:
            rows = _with_labels(rows, new.labels)
        old = kept.intersection(some)
        yield joined(rows, carried.rows(name, old) if old else None)


def _ids(table: pa.Table) -> list[str]:
    return [str(trial_id) for trial_id in pc.unique(table["trial_id"]).to_pylist()]


def _without_samples(folder: Path, sampled: Collection[str]) -> frozenset[str]:
    """Return the sampled trials whose file of samples is gone: their rows are only in the table."""
    return frozenset(trial_id for trial_id in sampled if not read_samples(folder, [trial_id]).num_rows)


@contextmanager
def _made(
    folder: Path, name: str, new: _New, carried: _Carried, about: Mapping[str, str], *, is_whole: bool
) -> Iterator[Path | None]:
    """Yield the temporary file of a complete table; None for one that is optional and has no rows.

    Args:
        folder: Where it belongs.
        name: Its name.
        new: Rows of records.
        carried: Rows of the table from before.
        about: Goes into the file.
        is_whole: Whether all rows of records are kept.
    """
    path, kept = table_path(folder, name), carried.kept(name, new, folder)
    if is_whole and not kept and name not in (RUNS, SAMPLES):
        # It is written already.
        yield new.spool.path(name) if new.spool.count(name) or name in TABLES else None
        return
    schema = arrow_schema({**TABLES, **OPTIONAL_TABLES}[name], about=about)
    rows = 0
    with temporary_next_to(path) as temporary:
        with write_errors(path), pq.ParquetWriter(temporary, schema) as writer:
            for portion in _portions(name, new, carried, kept, folder):
                writer.write_table(portion.cast(schema))
                rows += portion.num_rows
        yield temporary if rows or name in TABLES else None


def read_tables(folder: Path) -> Tables:
    """Read the stored tables of a grid, and check the laws of all of them.

    Raises:
        UsageError: A table is missing, cannot be read, breaks a law, or was written by another version of the schema.
            Carries every fault found.
    """
    files = tables_to_read(folder)
    frames = {name: _frame(files[name].rows()) for name in TABLES if name != "largest"}
    about = files["runs"].metadata
    return Tables(
        runs=frames["runs"],
        phases=frames["phases"],
        breakdown=frames["breakdown"],
        optional={name: files.get(name) for name in ("largest", *OPTIONAL_TABLES)},
        question=about.get(b"question", b"").decode(),
        command=about.get(b"command", b"").decode(),
    )


def _frame(table: pa.Table) -> pd.DataFrame:
    frame: pd.DataFrame = table.to_pandas(types_mapper=_PANDAS.get)
    return frame
