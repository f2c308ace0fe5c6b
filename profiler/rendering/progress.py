"""The progress of a running sweep: the running trials, each outcome, the time left."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from profiler.domain.outcome import Outcome, Status, TrialRecord
from profiler.domain.trial import Backend, PlannedTrial
from profiler.domain.units import gib_text
from profiler.rendering.wording import short_model

_STYLES = {Status.OK: "green", Status.OOM: "red"}
_DAY_S = 24 * 3600
"""Period over which rich computes the speed; a trial can take longer than the default of 30 s."""


class SweepProgress:
    """Context manager that shows a sweep on a console: a bar, or plain lines if the console is no terminal.

    Several trials can run at once.
    """

    def __init__(self, *, total: int, console: Console) -> None:
        self._console = console
        self._total = total
        self._done = 0
        self._running: dict[str, str] = {}
        self._progress = Progress(
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("left"),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=console,
            transient=True,
            speed_estimate_period=_DAY_S,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("starting", total=total)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def started(self, trial: PlannedTrial) -> None:
        """Show that a trial has started."""
        self._running[trial.trial_id] = _name(trial)
        self._describe()

    def waiting(self, reason: str) -> None:
        """Print why trials wait."""
        self._console.print(Text(reason, style="yellow"), soft_wrap=True)

    def finished(self, trial: PlannedTrial, record: TrialRecord) -> None:
        """Print one line with the outcome of a trial that has ended."""
        self._running.pop(trial.trial_id, None)
        self._done += 1
        self._progress.advance(self._task)
        self._describe()
        self._console.print(self._line(trial, record.outcome), soft_wrap=True)

    def _line(self, trial: PlannedTrial, outcome: Outcome) -> Text:
        width = len(str(self._total))
        line = Text(f"[{self._done:>{width}}/{self._total}] {_name(trial)}: ")
        line.append(_outcome_text(trial.spec.backend, outcome), style=_STYLES.get(outcome.status, "yellow"))
        took = f" ({_duration(outcome.work.wall_s)})" if outcome.work.wall_s is not None else ""
        left = self._progress.tasks[0].time_remaining
        # On a terminal the bar has the time left.
        show_left = not self._console.is_terminal and self._done < self._total
        return line.append(took).append(f", about {_duration(left)} left" if show_left and left is not None else "")

    def _describe(self) -> None:
        names = list(self._running.values())
        # The number comes first, because a narrow terminal cuts the end of the line.
        count = f"{len(names)} trials: " if len(names) > 1 else ""
        self._progress.update(self._task, description=count + ", ".join(names), refresh=True)


def _name(trial: PlannedTrial) -> str:
    return f"{short_model(trial.spec.model)}, {trial.label}"


def _outcome_text(backend: Backend, outcome: Outcome) -> str:
    word = backend.origin or "on the CPU"
    peak, needed = outcome.peaks.allocated_bytes, outcome.unlimited and outcome.unlimited.required_allocated_bytes
    if outcome.status is Status.OK:
        return f"{gib_text(peak)} {word}" if peak is not None else f"ok {word}"
    if outcome.status is Status.OOM:
        during = f" in {outcome.verdict.oom.phase}" if outcome.verdict.oom else ""
        return f"out of memory{during}" + (f", needs {gib_text(needed)} {word}" if needed else "")
    if outcome.status is Status.IMPLIED:
        return "out of memory, implied by a smaller trial"
    lines = outcome.message.strip().splitlines()
    return outcome.status.value + (f": {lines[-1].strip()}" if lines else "")


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"
