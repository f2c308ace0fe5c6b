"""Rows of others in the simulation: by the keys of a trial where they describe it, else by the authors' own script."""

import csv
import io
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from maintenance.benchmark.adapters.own import SIMULATED, simulated_rows
from maintenance.benchmark.adapters.question import Said
from maintenance.benchmark.answers.published_scripts import run_scripts, script_of
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
    """Simulate the rows that have no record in `folder` yet, write what all of them need, and return how many ended.

    A row whose authors publish the script that measured it is no trial: a loop over a model keeps other tensors.
    """
    side = Side(backend=Backend.SIMULATED, versions=installed_versions(), interpreter_of=own_python)
    by_keys = [row for row in rows if not row.beyond and find_builtin(str(row.job["model"])) and not script_of(row)]
    asked = [(row, spec_of(row)) for row in by_keys]
    store = RecordStore(folder)
    specs = list(dict.fromkeys(spec for _, spec in asked))
    run_pending(specs, (side,), store=store, options=options, at_most=None, run=run_side)
    found = [(row, store.find(side.trial(spec).trial_id)) for row, spec in asked]
    peaks = [(row.row_id, needed_sizes(record.outcome)) for row, record in found if record is not None]
    needs = {
        name: {"allocated": allocated, "reserved": reserved}
        for name, (allocated, reserved) in peaks
        if allocated is not None and reserved is not None
    }
    return _keep({row.row_id for row in by_keys}, needs)


def simulate_scripts(rows: Sequence[Row], folder: Path) -> int:
    """Run the published scripts whose output `folder` has not yet, write what all need, and return how many ended."""
    asked = [row for row in rows if script_of(row)]
    return _keep({row.row_id for row in asked}, run_scripts(asked, folder))


def _keep(asked: Collection[str], needs: Mapping[str, Said]) -> int:
    """Write what the rows that were asked need, with those of the others."""
    others = {name: said for name, said in simulated_rows().items() if name not in asked}
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("row_id", "allocated_bytes", "reserved_bytes"))
    writer.writerows(sorted((name, said["allocated"], said["reserved"]) for name, said in {**others, **needs}.items()))
    write_atomically(SIMULATED, file.getvalue().encode())
    simulated_rows.cache_clear()
    return len(needs)
