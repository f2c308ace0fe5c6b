"""Rows of others in the simulation: those that the keys of a trial describe and whose model is built in."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from maintenance.benchmark.adapters.own import SIMULATED
from maintenance.benchmark.rows.jobs import spec_of
from maintenance.emulated.rows import needed_sizes
from maintenance.emulated.running import Side, run_pending, run_side
from profiler.config.options.run_options import RunOptions
from profiler.domain.models.builtin_models import find_builtin
from profiler.domain.runs.shared import Row
from profiler.domain.trials.trial import Backend
from profiler.execution.pythons import own_python
from profiler.storage.files.atomic import write_atomically
from profiler.storage.records.versioned import installed_versions
from profiler.storage.stores.record_store import RecordStore


def simulate(rows: Sequence[Row], folder: Path, *, options: RunOptions) -> int:
    """Simulate the rows that have no record in `folder` yet, write what all of them need, and return how many ended."""
    side = Side(backend=Backend.SIMULATED, versions=installed_versions(), interpreter_of=own_python)
    asked = [(row, spec_of(row)) for row in rows if not row.beyond and find_builtin(str(row.job["model"])) is not None]
    store = RecordStore(folder)
    specs = list(dict.fromkeys(spec for _, spec in asked))
    run_pending(specs, (side,), store=store, options=options, at_most=None, run=run_side)
    found = [(row, store.find(side.trial(spec).trial_id)) for row, spec in asked]
    peaks = [(row.row_id, *needed_sizes(record.outcome)) for row, record in found if record is not None]
    needs = [each for each in peaks if None not in each]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("row_id", "allocated_bytes", "reserved_bytes"))
    writer.writerows(sorted(needs))
    write_atomically(SIMULATED, file.getvalue().encode())
    return len(needs)
