"""`VramCallback`: the memory of a training by transformers or trl, recorded by the trainer's own callbacks."""

import atexit
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from transformers import PreTrainedModel, TrainerCallback

from profiler.callback.recording import Instruments, Recording, added_to_logs, instruments_of_this_machine
from profiler.domain.errors import Fault, UsageError
from profiler.domain.runs.other_runs import RANK
from profiler.scripts.hooks import watched
from profiler.scripts.phase_watch import PhaseWatch
from profiler.storage.files.foreign_files import expanded
from profiler.storage.files.trial_files import wait_for_lock
from profiler.storage.records.record_folder import MONITORED, RecordFolder
from profiler.storage.stores.record_store import writable_faults

PERIOD_S = 0.1
_SHORTEST_S, _LONGEST_S = 0.01, 3600.0
_RANK, _WORLD_SIZE = "RANK", "WORLD_SIZE"
_LOCK = ".lock"
"""Held by the process that writes a folder: the ranks of a job end at about the same time."""

_OPEN_TO_THE_END = ExitStack()
"""Never closed: it keeps the program's peaks from the first reset on, and nothing can set those of torch to them."""

Event = TypeVar("Event", bound=Callable[..., None])


def _never_ends_training(event: Event) -> Event:
    """Let an error of the callback end the recording, and not the training."""

    @wraps(event)
    def guarded(self: "VramCallback", *arguments: Any, **named: Any) -> None:
        if self._broken:
            return
        try:
            event(self, *arguments, **named)
        except Exception as error:
            self._give_up(error)

    return cast("Event", guarded)


class VramCallback(TrainerCallback):
    """Record the peaks of each phase, and write a report when training ends.

    Make it before the trainer, so that loading is recorded as well::

        GRPOTrainer(..., callbacks=[VramCallback("runs/mine")])

    In a job of several processes, each rank has a record of its own, and they share the report.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        sample_period_s: float = PERIOD_S,
        forecast: bool = False,
        instruments: Callable[[], Instruments] | None = None,
    ) -> None:
        """Begin with loading.

        Args:
            folder: Of the records and the report; runs in the same folder share a report.
            sample_period_s: Time between two samples of the driver.
            forecast: Whether to say after 20, 200, 2,000 ... steps how memory grows and when the card is full.
            instruments: Makes the card and the driver, in place of those of this machine.

        Raises:
            UsageError: The folder cannot be written, or the period is not from 0.01 to 3600 s.
        """
        self._folder = _checked_folder(folder)
        self._period_s = _checked_period(sample_period_s)
        self._forecasts = forecast
        self._instruments = instruments or partial(instruments_of_this_machine, self._period_s)
        self._recording: Recording | None = None
        self._hooks = ExitStack()
        self._broken = False
        self._begin()
        atexit.register(self._end_with_the_process)

    # ---- events of the trainer ---------------------------------------------------------------------------------------

    @_never_ends_training
    def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:  # noqa: ARG002
        """Recognise phases from now on."""
        recording = self._recording or self._begin()
        watch = PhaseWatch(recording.session, steps=None)
        if named.get("optimizer") is not None:
            watch.is_trained(each for group in named["optimizer"].param_groups for each in group["params"])
        unseen = self._hooks.enter_context(watched(watch, models=_models_in(named.get("model"))))
        problem = self._hooks.enter_context(added_to_logs(recording.metrics))
        recording.notes += [*unseen.sentences, *([problem] if problem else [])]
        _OPEN_TO_THE_END.enter_context(recording.counters_shared())
        self._hooks.callback(watch.finish)

    @_never_ends_training
    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:  # noqa: ARG002
        """Keep the peaks of the step; its log follows."""
        if self._recording is not None:
            self._recording.step_ended()
            if self._forecasts and (growth := self._recording.growth()):
                _say(f"VramCallback: {growth}")

    @_never_ends_training
    def on_train_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:  # noqa: ARG002
        """Write the record and the report."""
        self._finish(completed=True)

    # ---- beginning and end -------------------------------------------------------------------------------------------

    def _begin(self) -> Recording:
        self._recording = Recording(self._instruments(), suffix=rank_suffix())
        return self._recording

    def _end_with_the_process(self) -> None:
        """Write the record of a training that did not end, as after an out-of-memory error."""
        if self._recording is None or self._broken:
            return
        error = getattr(sys, "last_value", None)
        problem = f"{type(error).__name__}: {error}" if error is not None else ""
        try:
            self._finish(completed=False, problem=problem)
        except Exception as failure:
            self._give_up(failure)

    def _finish(self, *, completed: bool, problem: str = "") -> None:
        recording, self._recording = self._recording, None
        self._hooks.close()
        if recording is None:
            return
        record = recording.finished(completed=completed, problem=problem)
        # Imported here, because importing matplotlib takes seconds.
        from profiler.monitor.watch.results import write_report
        from profiler.storage.tables.run_tables import write_time_series

        with wait_for_lock(self._folder / _LOCK, f"writes the tables of {self._folder}", notify=_say):
            RecordFolder(self._folder, MONITORED).write(record)
            write_time_series(self._folder, record.run_id, {0: recording.samples} if record.gpus else {}, ())
            for sentence in write_report(self._folder):
                _say(sentence)

    def _give_up(self, error: Exception) -> None:
        self._broken = True
        _say(f"VramCallback has stopped recording ({type(error).__name__}: {error}); the training goes on.")
        try:
            self._hooks.close()
        except Exception as second:
            _say(f"VramCallback could not remove its hooks ({type(second).__name__}: {second}).")


def rank_suffix() -> str:
    """Return what a run is called by in a job of several processes; empty in any other."""
    if os.environ.get(_WORLD_SIZE, "1") in ("", "1"):
        return ""
    return f"{RANK}{os.environ.get(_RANK, '0')}"


def _models_in(model: Any) -> list[Any]:
    """Return the modules whose passes are those of a model: the model, and those that adapters or a loss may call."""
    if model is None:
        return []
    return list(dict.fromkeys([model, *(each for each in model.modules() if isinstance(each, PreTrainedModel))]))


def _say(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")


def _checked_folder(folder: str | os.PathLike[str]) -> Path:
    found = str(os.fspath(folder))
    try:
        path = expanded(found)
        faults = writable_faults(path)
    except (OSError, ValueError) as error:
        raise UsageError([Fault(key="folder", found=found, problem=f"cannot be used ({error})")]) from error
    if not found.strip() or faults:
        problem = faults[0].problem if faults else "must be a folder"
        raise UsageError([Fault(key="folder", found=found, problem=problem)])
    RecordFolder(path, MONITORED).read_all()  # a record of a newer version is found before anything starts
    return path


def _checked_period(period_s: float) -> float:
    if isinstance(period_s, bool) or not isinstance(period_s, int | float) or not _SHORTEST_S <= period_s <= _LONGEST_S:
        problem = f"must be a number of seconds from {_SHORTEST_S:g} to {_LONGEST_S:g}"
        raise UsageError([Fault(key="sample_period_s", found=str(period_s), problem=problem)])
    return float(period_s)
