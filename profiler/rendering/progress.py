"""What a running sweep shows: the trial under way, each outcome as it lands, the time left."""

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

_WORDS = {Backend.CUDA: "measured", Backend.SIMULATED: "simulated", Backend.CPU: "on the CPU"}
_STYLES = {Status.OK: "green", Status.OOM: "red"}
_ALL_DAY_S = 24 * 3600
"""rich forgets what is older when it reckons the speed; a trial can be longer than its default of half a minute."""


class SweepProgress:
    """Shows a sweep on a console; plain lines where that is no terminal. Use it as a context manager.

    Several trials may be under way at once.
    """

    def __init__(self, *, total: int, console: Console) -> None:
        self._console = console
        self._total = total
        self._done = 0
        self._under_way: dict[str, str] = {}
        self._progress = Progress(
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("left"),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=console,
            transient=True,
            speed_estimate_period=_ALL_DAY_S,
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
        """A trial has begun."""
        self._under_way[trial.trial_id] = _name(trial)
        self._describe()

    def finished(self, trial: PlannedTrial, record: TrialRecord) -> None:
        """A trial has ended; its outcome gets a line of its own."""
        self._under_way.pop(trial.trial_id, None)
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
        # On a terminal the bar says it.
        tell = not self._console.is_terminal and left is not None and self._done < self._total
        return line.append(took).append(f", about {_duration(left)} left" if tell and left is not None else "")

    def _describe(self) -> None:
        names = list(self._under_way.values())
        # The number first: the end of the line is what a narrow terminal cuts.
        count = f"{len(names)} trials: " if len(names) > 1 else ""
        self._progress.update(self._task, description=count + ", ".join(names), refresh=True)


def _name(trial: PlannedTrial) -> str:
    return f"{short_model(trial.spec.model)}, {trial.label}"


def _outcome_text(backend: Backend, outcome: Outcome) -> str:
    peak, needed = outcome.peaks.allocated_bytes, outcome.simulated and outcome.simulated.required_allocated_bytes
    if outcome.status is Status.OK:
        return f"{gib_text(peak)} {_WORDS[backend]}" if peak is not None else f"ok {_WORDS[backend]}"
    if outcome.status is Status.OOM:
        during = f" in {outcome.verdict.oom.phase}" if outcome.verdict.oom else ""
        return f"out of memory{during}" + (f", needs {gib_text(needed)} {_WORDS[backend]}" if needed else "")
    if outcome.status is Status.IMPLIED:
        return "out of memory, implied by a smaller trial"
    lines = outcome.message.strip().splitlines()
    return outcome.status.value + (f": {lines[-1].strip()}" if lines else "")


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"
