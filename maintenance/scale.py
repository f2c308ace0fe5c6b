"""From the records of 10,000 varied trials to tables and page: CPU seconds and memory, each in a process of its own.

`python -m maintenance.scale` prints the figures; `maintenance.bench` shows them too. Goal: 30 CPU seconds, 1 GB of
memory, a page of 15 MB.
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

TRIALS = 10_000

_MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The cost of one sweep's tables and page, without running its trials."""

    trials: int
    read_s: float
    tables_s: float
    report_s: float
    """CPU seconds."""
    memory_mib: float
    """Most memory of the two processes that read and draw."""
    page_mb: float

    @property
    def total_s(self) -> float:
        """CPU seconds from records to page."""
        return self.read_s + self.tables_s + self.report_s


def measure(trials: int = TRIALS) -> Scale:
    """Make the records of varied trials in a temporary folder, and measure what follows."""
    with TemporaryDirectory() as folder:
        _in_a_process("make", folder, str(trials))
        assembled, report = (_in_a_process(stage, folder) for stage in ("assemble", "draw"))
    return Scale(
        trials=trials,
        read_s=assembled["read_s"],
        tables_s=assembled["tables_s"],
        report_s=report["report_s"],
        memory_mib=max(assembled["memory_mib"], report["memory_mib"]),
        page_mb=report["page_mb"],
    )


def make(folder: Path, trials: int) -> dict[str, float]:
    """Write the records."""
    from maintenance.many_records import many_specs, varied_records
    from profiler.storage.records import RecordStore

    store = RecordStore(folder)
    for record in varied_records(many_specs(trials)):
        store.write(record)
    return {}


def assemble(folder: Path) -> dict[str, float]:
    """Read the records and write the tables, as the end of a sweep does."""
    from maintenance.sampling import architecture_of
    from profiler.config.labels import relabelled
    from profiler.report.estimates import estimates_by_trial
    from profiler.storage.records import RecordStore
    from profiler.storage.tables import write_tables
    from profiler.sweep.parts import SweepParts

    started = time.process_time()
    records = relabelled(RecordStore(folder).read_all())
    read_s = time.process_time() - started
    specs = {record.trial_id: record.spec for record in records}
    write_tables(folder, records, estimates_by_trial(specs, SweepParts().estimates, architecture_of))
    return {"read_s": read_s, "tables_s": time.process_time() - started - read_s, "memory_mib": _memory_mib()}


def draw(folder: Path) -> dict[str, float]:
    """Draw page and figures from the tables."""
    from profiler.report.drawing import PAGE, render_folder

    started = time.process_time()
    render_folder(folder, console=None)
    return {
        "report_s": time.process_time() - started,
        "memory_mib": _memory_mib(),
        "page_mb": (folder / PAGE).stat().st_size / 1e6,
    }


def main(words: Sequence[str]) -> int:
    """Print the figures; with words, run one stage and print its own as JSON."""
    match words:
        case ["make", folder, trials]:
            print(json.dumps(make(Path(folder), int(trials))))  # noqa: T201  read by the parent
        case ["assemble" | "draw" as stage, folder]:
            print(json.dumps((assemble if stage == "assemble" else draw)(Path(folder))))  # noqa: T201
        case _:
            print(measure())  # noqa: T201
    return 0


def _in_a_process(*words: str) -> dict[str, float]:
    command = [sys.executable, "-W", "ignore", "-m", "maintenance.scale", *words]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _memory_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / _MIB


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
