"""The progress of a running sweep: the running trials, each outcome, and one line with the state of the whole."""

from threading import Event, Thread
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column
from rich.text import Text

from profiler.analysis.times.sweep_time import SweepTally
from profiler.domain.machines.engines import Machines, SweepState
from profiler.domain.memory import gib_text
from profiler.domain.runs.outcome import Outcome, Status, TrialRecord
from profiler.domain.trials.trial import Backend, PlannedTrial
from profiler.rendering.memory_words import short_model

_STYLES = {Status.OK: "green", Status.OOM: "red"}

_BAR = 16
"""Width of the bar."""

_TERMINAL_S = 2.0
"""How often the line of a terminal is drawn anew while nothing ends."""

_LINE_S = 60.0
"""How often the state is printed where there is no terminal."""

_MOST_HOSTS = 4
"""Most machines that are named."""


class SweepProgress:
    """Context manager that shows a sweep on a console: a bar, or plain lines if the console is no terminal.

    Events go to the tally, and what is drawn is its state. Several trials can run at once.
    """

    def __init__(self, tally: SweepTally, *, console: Console, line_s: float = _LINE_S) -> None:
        """Draw nothing yet.

        Args:
            tally: Counts the trials.
            console: Where to draw.
            line_s: How often to print the state where the console is no terminal.
        """
        self._console = console
        self._tally = tally
        self._total = len(tally.plan)
        self._period_s = _TERMINAL_S if console.is_terminal else line_s
        self._ended = Event()
        self._running: dict[str, str] = {}
        self._reported = 0
        self._progress = Progress(
            BarColumn(bar_width=_BAR),
            MofNCompleteColumn(),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("starting", total=self._total)

    def __enter__(self) -> Self:
        self._progress.start()
        Thread(target=self._tick, name="progress", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._progress.stop()

    def started(self, trial: PlannedTrial) -> None:
        """Show that a trial has started."""
        self._tally.started(trial)
        self._running[trial.trial_id] = _name(trial)
        self._describe()

    def lost(self, trial: PlannedTrial) -> None:
        """Show that a trial waits again, because its worker, node or GPU was lost."""
        self._tally.lost(trial)
        self._running.pop(trial.trial_id, None)
        self._describe()

    def machines(self, found: Machines) -> None:
        """Show the machines of the sweep."""
        self._tally.machines(found)
        self._describe()

    def waiting(self, reason: str) -> None:
        """Print why trials wait."""
        self._console.print(Text(reason, style="yellow"), soft_wrap=True)

    def finished(self, trial: PlannedTrial, record: TrialRecord) -> None:
        """Print one line with the outcome of a trial that has ended."""
        self._tally.finished(trial, record)
        self._running.pop(trial.trial_id, None)
        self._reported += 1
        self._describe()
        self._console.print(self._line(trial, record.outcome, self._tally.state()), soft_wrap=True)

    def _tick(self) -> None:
        """Show the state from time to time, until the sweep ends or nobody reads the output."""
        while not self._ended.wait(self._period_s):
            try:
                self._describe()
                if not self._console.is_terminal:
                    self._console.print(Text(state_line(self._tally.state())), soft_wrap=True)
            except (OSError, ValueError):
                return

    def _line(self, trial: PlannedTrial, outcome: Outcome, state: SweepState) -> Text:
        width = len(str(self._total))
        line = Text(f"[{self._reported:>{width}}/{self._total}] {_name(trial)}: ")
        line.append(_outcome_text(trial.spec.backend, outcome), style=_STYLES.get(outcome.status, "yellow"))
        took = f" ({_duration(outcome.work.wall_s)})" if outcome.work.wall_s is not None else ""
        # On a terminal the bar has the time left.
        is_shown = not self._console.is_terminal and state.done < self._total
        left = _left(state) if is_shown else ""
        return line.append(took).append(f", about {left} left" if left else "")

    def _describe(self) -> None:
        if self._progress.disable:
            return
        state = self._tally.state()
        # The numbers come first, because a narrow terminal cuts the end of the line.
        parts = [f"~{left} left" if (left := _left(state)) else "", *_counts(state), ", ".join(self._running.values())]
        text = Text(" · ".join(filter(None, parts)))
        # Cut here, because rich would give up the bar for a long text.
        text.truncate(self._console.width - _BAR - len(f" {state.done}/{state.total} "), overflow="ellipsis")
        self._progress.update(self._task, completed=state.done, description=text.plain, refresh=True)


def state_line(state: SweepState) -> str:
    """Return the state of a sweep as one sentence."""
    others = f" ({state.done_by_others} by other machines)" if state.done_by_others else ""
    left = f"; about {_left(state)} left" if _left(state) else ""
    return f"{state.done} of {state.total} trials done{others}, {', '.join(_counts(state))}{left}."


def _counts(state: SweepState) -> list[str]:
    found = [
        f"{state.running} running{_hosts(state)}",
        f"{state.waiting} waiting",
        f"{state.lost} lost" if state.lost else "",
        f"{state.repeated} repeated" if state.repeated else "",
        _busy(state.nodes_busy, state.nodes, "node"),
        _busy(state.gpus_busy, state.gpus, "GPU") if state.gpus or state.gpus_busy else "",
    ]
    return list(filter(None, found))


def _hosts(state: SweepState) -> str:
    """Return how many trials run on which other machines, those with most first."""
    named = [(host or "unknown", count) for host, count in state.running_by_others.items()]
    if not named:
        return ""
    named.sort(key=lambda each: (-each[1], each[0]))
    more = [f"{len(named) - _MOST_HOSTS} more"] if len(named) > _MOST_HOSTS else []
    return f" ({', '.join([*(f'{count} on {host}' for host, count in named[:_MOST_HOSTS]), *more])})"


def _busy(busy: int | None, there: int | None, what: str) -> str:
    if there is None:
        return f"{_plural(busy or 0, what)} busy"
    if not there:
        return f"no {what}"
    return _plural(there, what) if busy is None else f"{busy} of {_plural(there, what)} busy"


def _plural(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _left(state: SweepState) -> str:
    """Return the time and the money left; empty while the time is not known."""
    if state.left_s is None:
        return ""
    return _duration(state.left_s) + (f" and {state.left_cost}" if state.left_cost is not None else "")


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
