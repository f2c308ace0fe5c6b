"""From the records of many varied trials to tables and page: seconds and memory, each stage in a process of its own.

`python -m maintenance.benchmarks.scale` prints the figures of 10,000 trials, which `maintenance.bench` shows too. Their
goal: 30 CPU seconds, 1 GB of memory, a page of 15 MB.

`python -m maintenance.benchmarks.scale trials=100000 [folder=FOLDER]` is the run whose bounds are 5 minutes and 2 GB,
from a folder and from a store that machines share; making its records takes longer. With `folder` they stay for the
next run.
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from maintenance.words import read_words
from profiler.command_line import as_command
from profiler.config.options.reading import FieldReader
from profiler.domain.errors import UsageError
from profiler.domain.machines.engines import address_of

TRIALS = 10_000

_MIB = 2**20
_LEASE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The cost of one sweep's tables and page, without running its trials."""

    trials: int
    tables_s: float
    report_s: float
    """CPU seconds."""
    elapsed_s: float
    """Of both together, by the clock."""
    memory_mib: float
    """Most memory of the two processes that assemble and draw."""
    page_mb: float

    @property
    def total_s(self) -> float:
        """CPU seconds from records to page."""
        return self.tables_s + self.report_s


def measure(trials: int = TRIALS, *, records: Path | None = None, is_shared: bool = False) -> Scale:
    """Make the records of varied trials, and measure what follows.

    Args:
        trials: How many.
        records: A folder that has such records already, or will have them; None for a temporary one.
        is_shared: Whether to read them as a store that machines share.
    """
    with TemporaryDirectory() as temporary:
        made = records or Path(temporary) / "records_of" / "many"
        if not (made / "records").exists():
            _in_a_process("make", str(made), str(trials))
        folder = Path(temporary) / "many" if is_shared else made
        started = time.monotonic()
        assembled = (
            _in_a_process("fetch", str(made), str(folder)) if is_shared else _in_a_process("assemble", str(made))
        )
        report = _in_a_process("draw", str(folder))
        elapsed_s = time.monotonic() - started
    return Scale(
        trials=trials,
        tables_s=assembled["tables_s"],
        report_s=report["report_s"],
        elapsed_s=elapsed_s,
        memory_mib=max(assembled["memory_mib"], report["memory_mib"]),
        page_mb=report["page_mb"],
    )


def make(folder: Path, trials: int) -> dict[str, float]:
    """Write the records; not synchronised one by one, which would take most of the time."""
    from maintenance.benchmarks.many_records import many_specs, varied_records
    from profiler.storage.records.record_folder import TRIALS
    from profiler.storage.stores.record_store import RecordStore

    store = RecordStore(folder)
    (folder / "records").mkdir(parents=True)
    for record in varied_records(many_specs(trials)):
        store.path(record.trial_id).write_bytes(TRIALS.content(record))
    return {}


def assemble(folder: Path) -> dict[str, float]:
    """Read the records of a folder and write the tables, as the end of a sweep does."""
    from maintenance.samples.sampling import architecture_of
    from profiler.analytical.many import estimates_by_trial, estimates_of
    from profiler.storage.stores.record_store import RecordStore
    from profiler.storage.sweep_tables.tables import assemble_tables

    started = time.process_time()
    estimates = partial(estimates_by_trial, estimates=estimates_of, architecture_of=architecture_of)
    for table in folder.glob("*.parquet"):
        table.unlink()
    assemble_tables(folder, RecordStore(folder).read_each(), estimates)
    return {"tables_s": time.process_time() - started, "memory_mib": _memory_mib()}


def fetch(store: Path, folder: Path) -> dict[str, float]:
    """Read the records of a store and write the tables to a folder, as a report of a store does."""
    from maintenance.samples.sampling import architecture_of
    from profiler.analytical.many import estimates_by_trial, estimates_of
    from profiler.storage.stores.shared_store import open_shared
    from profiler.storage.sweep_tables.tables import assemble_tables

    started = time.process_time()
    address = address_of(f"file://{store.resolve()}")
    assert address is not None
    shared = open_shared(address, folder, lease_s=_LEASE_S, notify=print)
    shared.gather()
    estimates = partial(estimates_by_trial, estimates=estimates_of, architecture_of=architecture_of)
    assemble_tables(folder, shared.read_each(), estimates)
    return {"tables_s": time.process_time() - started, "memory_mib": _memory_mib()}


def draw(folder: Path) -> dict[str, float]:
    """Draw page and figures from the tables."""
    from profiler.report.main import PAGE, render_folder

    started = time.process_time()
    render_folder(folder, console=None)
    return {
        "report_s": time.process_time() - started,
        "memory_mib": _memory_mib(),
        "page_mb": (folder / PAGE).stat().st_size / 1e6,
    }


@as_command("scale")
def main(words: Sequence[str]) -> int:
    """Print the figures; with the name of a stage, run it and print its own as JSON."""
    match words:
        case ["make", folder, trials]:
            _print(make(Path(folder), int(trials)))
        case ["assemble", folder]:
            _print(assemble(Path(folder)))
        case ["fetch", store, folder]:
            _print(fetch(Path(store), Path(folder)))
        case ["draw", folder]:
            _print(draw(Path(folder)))
        case _:
            count, records = _settings(words)
            for is_shared in (False, True) if count > TRIALS else (False,):
                print("from a shared store:" if is_shared else "from a folder:")  # noqa: T201
                print(measure(count, records=records, is_shared=is_shared), flush=True)  # noqa: T201
    return 0


def _settings(words: Sequence[str]) -> tuple[int, Path | None]:
    """Return how many trials, and the folder that keeps their records."""
    values, faults = read_words(words, {"trials": TRIALS, "folder": None})
    reader = FieldReader(values)
    count = reader.count("trials", minimum=1)
    folder = None if values["folder"] is None else Path(reader.text("folder", "a folder"))
    if faults or reader.faults:
        raise UsageError([*faults, *reader.faults])
    return count, folder


def _print(found: dict[str, float]) -> None:
    print(json.dumps(found))  # noqa: T201  read by the parent


def _in_a_process(*words: str) -> dict[str, float]:
    command = [sys.executable, "-W", "ignore", "-m", "maintenance.benchmarks.scale", *words]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _memory_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / _MIB


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
