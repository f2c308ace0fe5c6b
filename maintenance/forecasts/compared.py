"""Both sides of all runs as rows, one per step, and what differs; and the files that keep them."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from maintenance.forecasts.jobs import RUNS, Run
from maintenance.forecasts.running import Files, Line, has_ended, lines_of
from profiler.allocator.settings import MIN_BLOCK_BYTES
from profiler.storage.files.atomic import write_atomically

METRICS = ("allocated", "reserved")

MOST_RESERVED = 0.01
"""Largest error of reserved memory in a step; allocated memory has to be equal."""


@dataclass(frozen=True, kw_only=True)
class End:
    """How a run ends on one side: the request that the card refuses; None if every step has run."""

    step: int
    phase: str
    requested_bytes: int
    """As the allocator rounds it."""
    allocated_bytes: int | None = field(default=None, compare=False)
    """In tensors at that moment; None in a file that was kept before this was read. Ends are alike without it."""
    reserved_bytes: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        request = f"step {self.step}, {self.phase}, {self.requested_bytes:,} bytes"
        if self.allocated_bytes is None:
            return request
        return f"{request} next to {self.allocated_bytes:,} allocated and {self.reserved_bytes:,} reserved"


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One run that has ended on both sides."""

    run: Run
    rows: pd.DataFrame
    """One per step that both sides have: `run`, `step`, and `SIDE_METRIC_bytes`."""
    trained: End | None
    forecast: End | None
    stopped: str = ""
    """Why the trainer has not run to its end, where the card refused nothing; its steps are compared."""

    @property
    def equal(self) -> Mapping[str, int]:
        """Steps that are equal to the byte, by metric."""
        return {metric: int((self._of("trained", metric) == self._of("forecast", metric)).sum()) for metric in METRICS}

    @property
    def worst(self) -> Mapping[str, float]:
        """The largest error of a step, relative to those of the trainer, by metric."""
        return {
            metric: float(((self._of("forecast", metric) - self._of("trained", metric)).abs() / trained).max())
            for metric in METRICS
            for trained in [self._of("trained", metric)]
        }

    @property
    def problems(self) -> Sequence[str]:
        """One sentence per requirement that does not hold."""
        found = []
        if different := len(self.rows) - self.equal["allocated"]:
            found.append(f"{self.run.name}: allocated memory differs in {different} of {len(self.rows)} steps.")
        if self.worst["reserved"] > MOST_RESERVED:
            found.append(f"{self.run.name}: reserved memory differs by up to {self.worst['reserved']:.2%}.")
        if self.trained != self.forecast and not (self.stopped and self._dies_later):
            found.append(
                f"{self.run.name}: {self.run.job.side}, {self.trained or 'it survives'}; forecast, {self.forecast}."
            )
        return found

    @property
    def _dies_later(self) -> bool:
        """Whether the forecast has no death in the steps that are compared, nor in the next one."""
        return self.forecast is None or self.forecast.step > len(self.rows) + 1

    def _of(self, side: str, metric: str) -> pd.Series:
        return self.rows[f"{side}_{metric}_bytes"]


def compared(runs: Sequence[Run], files: Files) -> list[Compared]:
    """Return the runs that have ended on both sides."""
    return [
        _compared(run, lines_of(files.trained(run)), lines_of(files.forecast(run)))
        for run in runs
        if has_ended(files.trained(run)) and has_ended(files.forecast(run))
    ]


def _compared(run: Run, trained: Sequence[Line], forecast: Sequence[Line]) -> Compared:
    both = zip(_steps(trained), _steps(forecast), strict=False)
    return Compared(
        run=run,
        rows=pd.DataFrame([{"run": run.name, "step": one["step"], **_sizes(one, other)} for one, other in both]),
        trained=_end(trained),
        forecast=_end(forecast),
        stopped=trained[-1].get("stopped", ""),
    )


def _steps(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if line["kind"] == "step"]


def _sizes(trained: Line, forecast: Line) -> dict[str, Any]:
    sides = {"trained": trained, "forecast": forecast}
    return {f"{side}_{metric}_bytes": line[f"{metric}_bytes"] for metric in METRICS for side, line in sides.items()}


def _end(lines: Sequence[Line]) -> End | None:
    for line in lines:
        if line["kind"] == "died":
            rounded = -(-line["requested_bytes"] // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES
            held = {f"{metric}_bytes": line[f"{metric}_bytes"] for metric in METRICS}
            return End(step=line["step"], phase=line["phase"], requested_bytes=rounded, **held)
    return None


# ---- files -----------------------------------------------------------------------------------------------------------

STEPS, ENDS, CAUSES = "steps.parquet", "ends.csv", "causes.csv"

_STOPPED = "stopped"
_END_SIZES = ("requested_bytes", *(f"{metric}_bytes" for metric in METRICS))
_END_COLUMNS = ("run", "side", "step", "phase", *_END_SIZES, _STOPPED)
"""A row has the request that was refused, or why the trainer was stopped after a step."""


def keep(found: Sequence[Compared], folder: Path) -> None:
    """Write the rows of all runs, and the requests that were refused."""
    rows = pd.concat([each.rows for each in found], ignore_index=True)
    text = io.StringIO()
    table = csv.DictWriter(text, _END_COLUMNS, lineterminator="\n")
    table.writeheader()
    for each in found:
        ends = {"trained": each.trained, "forecast": each.forecast}
        table.writerows({"run": each.run.name, "side": side, **asdict(end)} for side, end in ends.items() if end)
        if each.stopped:
            table.writerow({"run": each.run.name, "side": "trained", "step": len(each.rows), _STOPPED: each.stopped})
    write_atomically(folder / STEPS, rows.to_parquet(index=False))
    write_atomically(folder / ENDS, text.getvalue().encode())


def kept(folder: Path) -> list[Compared]:
    """Return the runs that `keep` wrote."""
    rows = pd.read_parquet(folder / STEPS)
    with (folder / ENDS).open(newline="") as file:
        lines = list(csv.DictReader(file))
    stopped = {row["run"]: row[_STOPPED] for row in lines if row[_STOPPED]}
    ends = {
        (row["run"], row["side"]): End(
            step=int(row["step"]),
            phase=row["phase"],
            **{name: int(row[name]) for name in _END_SIZES if row.get(name)},
        )
        for row in lines
        if not row[_STOPPED]
    }
    return [
        Compared(
            run=run,
            rows=rows[rows.run == run.name],
            trained=ends.get((run.name, "trained")),
            forecast=ends.get((run.name, "forecast")),
            stopped=stopped.get(run.name, ""),
        )
        for run in RUNS
        if (rows.run == run.name).any()
    ]


def read_causes(folder: Path) -> Mapping[str, str]:
    """Return why a run differs, found by hand, by its name; empty without the file."""
    path = folder / CAUSES
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {row["run"]: row["cause"] for row in csv.DictReader(file)}


def unexplained(found: Sequence[Compared], causes: Mapping[str, str]) -> list[str]:
    """Return the sentences about runs of which no cause is known."""
    return [problem for each in found for problem in each.problems if each.run.name not in causes]
