"""The process of a script: start, launcher, time limit, and second runs of an emulated script."""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import profiler
from profiler.command_line import print_line
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import Fault, UsageError
from profiler.domain.runs.other_runs import LateEvents, NamedCard, ScriptEnding, ScriptJob, ScriptRecord
from profiler.domain.runs.outcome import Outcome, Status, UnlimitedCard, Verdict, Work
from profiler.emulation.card import FILE_VARIABLE, UNLIMITED_BYTES, marks_of_file
from profiler.emulation.interpreter import answer_of
from profiler.emulation.launch import Events, is_strict
from profiler.run.backend import Place
from profiler.run.command import Command
from profiler.storage.files.typed_json import to_json
from profiler.storage.records.record_folder import SCRIPTS, RecordFolder

_PROGRAM = Path(profiler.__file__).parent / "worker" / "scripts" / "script_process.py"
_LIMIT_S = 120.0
_ACCELERATE = ("accelerate", "launch")
_DEEPSPEED = "deepspeed"
_WITHOUT_RANK = ("--no_local_rank", "--no-local-rank")


def launcher_arguments(command: Command) -> tuple[str, ...]:
    """Return the arguments that the launcher puts in front of the script's own."""
    words = command.launch.words
    if not words or words[0] != _DEEPSPEED or set(words) & set(_WITHOUT_RANK):
        return ()
    return ("--local_rank=0",)


def launcher_variables(command: Command, executable: Path, environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment variables that the launcher sets for the script.

    Raises:
        UsageError: accelerate refuses its words.
    """
    words = command.launch.words
    if words[:2] != _ACCELERATE:
        return {}
    own = [f"--num_processes={command.options.num_processes}"] if command.options.num_processes else []
    asked = [str(executable), str(_PROGRAM), *words, *own, str(command.script), *command.arguments]
    try:
        printed = answer_of(asked, environment=environment, timeout_s=_LIMIT_S)
        return dict(json.loads(printed.splitlines()[-1]))
    except subprocess.CalledProcessError as error:
        problem = (error.stderr.strip().splitlines() or [f"exit code {error.returncode}"])[-1]
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    hint = "See accelerate launch --help."
    raise UsageError([Fault(key="launcher", found=" ".join(words), problem=f"is refused ({problem})", hint=hint)])


_GRACE_S = 10.0
"""How long a script has to end after SIGINT, by which its `finally` blocks run."""
_LINGERING_S = 60.0
"""How long a process may live on after its record is there, for exit handlers and threads."""
_POLL_S = 1.0


@dataclass(frozen=True, kw_only=True)
class _Ended:
    exit_code: int
    """Negative: minus the number of a signal."""
    timed_out: bool
    wall_s: float
    note: str = ""
    """Why it ended without a record, as it said itself."""
    unanswered: str = ""
    """The entry point of the emulated driver without an answer that it asked for last: ``"library:name"``."""
    again: str = ""
    """Why the script has to run once more with all layers; empty if it has not."""


def run_in_process(
    job: ScriptJob, executable: Path, environment: Mapping[str, str], *, timeout_s: float
) -> ScriptRecord:
    """Run the job in a process of its own, whose output is that of this command, and return its record."""
    store = RecordFolder(Path(job.folder), SCRIPTS)
    store.remove(job.run_id)
    ended = _run(job, executable, environment, timeout_s)
    if ended.again:
        print_line(f"Once more with all layers, because {ended.again}:")
        ended = _run(job, executable, environment, timeout_s, all_layers=True)
    record = store.find(job.run_id)
    if record is None:
        record = _of_lost_process(job, ended, timeout_s, strict=is_strict(environment))
        store.write(record)
    elif ended.timed_out:
        # It was interrupted, and has kept its peaks so far.
        status, message = _verdict(ended, timeout_s)
        verdict = replace(record.outcome.verdict, status=status, message=message)
        record = replace(record, outcome=replace(record.outcome, verdict=verdict))
        store.write(record)
    elif ended.unanswered and record.outcome.status is Status.FAILED and is_strict(environment):
        verdict = replace(record.outcome.verdict, message=f"{record.outcome.message} ({_unanswered(ended.unanswered)})")
        record = replace(record, outcome=replace(record.outcome, verdict=verdict))
        store.write(record)
    return record


def _run(
    job: ScriptJob, executable: Path, environment: Mapping[str, str], timeout_s: float, *, all_layers: bool = False
) -> _Ended:
    started_s = time.monotonic()
    with _temporary_folder() as folder, _open_pipe() as pipe:
        path, note, again, marks = (folder / name for name in ("job.json", "note", "again", "marks"))
        path.write_text(
            json.dumps(to_json(replace(job, note_file=str(note), again_file="" if all_layers else str(again))))
        )
        process = subprocess.Popen(
            [str(executable), str(_PROGRAM), str(path), str(pipe)],
            env={**environment, FILE_VARIABLE: str(marks)},
            stdin=subprocess.DEVNULL,
            pass_fds=(pipe,),
            start_new_session=True,
        )
        timed_out = False
        try:
            timed_out = not _has_ended(
                process, lambda: RecordFolder(Path(job.folder), SCRIPTS).find(job.run_id), timeout_s
            )
        finally:
            # Also after an interruption, and for processes that the script has left.
            _end_group(process)
        return _Ended(
            exit_code=process.returncode,
            timed_out=timed_out,
            wall_s=time.monotonic() - started_s,
            note=_text(note),
            again="" if timed_out else _text(again),
            unanswered=next(iter(reversed(marks_of_file(marks).unseen_entry_points)), ""),
        )


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """Make a folder that is gone at the end, also when this process is killed: another one waits for that."""
    folder = tempfile.mkdtemp()
    reader, writer = os.pipe()
    removes = ["/bin/sh", "-c", 'read -r _; exec rm -rf -- "$0"', folder]
    with subprocess.Popen(removes, stdin=reader, start_new_session=True):
        os.close(reader)
        try:
            yield Path(folder)
        finally:
            os.close(writer)


@contextmanager
def _open_pipe() -> Iterator[int]:
    """Give a pipe whose other end is closed when this process ends, however it does."""
    reader, writer = os.pipe()
    try:
        yield reader
    finally:
        os.close(reader)
        os.close(writer)


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def _has_ended(process: subprocess.Popen[bytes], record: Callable[[], object], timeout_s: float) -> bool:
    """Wait for a process; return whether it ended in time, or left its record and lives on without a need."""
    ends_s = time.monotonic() + timeout_s
    recorded_s: float | None = None
    while (now_s := time.monotonic()) < ends_s:
        with suppress(subprocess.TimeoutExpired):
            process.wait(min(_POLL_S, ends_s - now_s))
            return True
        if recorded_s is None and record() is not None:
            recorded_s = now_s
        if recorded_s is not None and now_s - recorded_s > _LINGERING_S:
            return True
    return False


def _end_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _of_lost_process(job: ScriptJob, ended: _Ended, timeout_s: float, *, strict: bool) -> ScriptRecord:
    status, message = _verdict(ended, timeout_s)
    if strict and ended.unanswered and not ended.timed_out:
        status, message = Status.UNSUPPORTED, _unanswered(ended.unanswered)
    return ScriptRecord(
        run_id=job.run_id,
        spec=job.spec,
        script_sha256=job.script_sha256,
        ending=ScriptEnding(exit_code=ended.exit_code, by_steps=False),
        versions=job.versions,
        outcome=Outcome(verdict=Verdict(status=status, message=message), work=Work(wall_s=ended.wall_s)),
    )


def _verdict(ended: _Ended, timeout_s: float) -> tuple[Status, str]:
    if ended.timed_out:
        return Status.TIMEOUT, f"the script ran longer than timeout_s={timeout_s:g}"
    if ended.exit_code == -signal.SIGKILL:
        return Status.KILLED, "the process of the script was killed, as the kernel does when the host has no memory"
    if ended.exit_code < 0:
        with suppress(ValueError):
            return Status.FAILED, f"the process of the script ended by {signal.Signals(-ended.exit_code).name}"
    why = f": {ended.note}" if ended.note else ""
    return Status.FAILED, f"the process of the script ended with exit code {ended.exit_code} and without a record{why}"


def _unanswered(entry_point: str) -> str:
    """Return the words of the driver for an entry point of one of its libraries that it does not have."""
    library, _, name = entry_point.partition(":")
    return (
        f"the emulated driver has no answer for {name} of {library}, so this script cannot be emulated; strict=false "
        "goes on and marks the record"
    )


class Again(Protocol):
    """Runs a job once more."""

    def __call__(self, job: ScriptJob, *, events: Events = Events.EARLY, unlimited: bool = False) -> ScriptRecord:
        """Return the record of the run, which is kept nowhere."""


def with_second_runs(record: ScriptRecord, job: ScriptJob, again: Again, *, late_events: bool) -> ScriptRecord:
    """Return the record of an emulated run with what its second run shows, and store it.

    Args:
        record: Of the first run.
        job: That run.
        again: Runs it once more.
        late_events: Whether a run that ends well is repeated with late events.
    """
    if record.outcome.status is Status.OOM:
        found = _with_needs(record, job, again)
    elif record.outcome.status is Status.OK and late_events:
        found = _with_late_events(record, job, again)
    else:
        return record
    RecordFolder(Path(job.folder), SCRIPTS).write(found)
    return found


def in_new_processes(
    place: Place, *, launched: Mapping[str, str], num_processes: int, strict: bool, timeout_s: float
) -> Again:
    """Return the function that runs jobs in processes of `place`; `launched` are the variables of the launcher."""

    def again(job: ScriptJob, *, events: Events = Events.EARLY, unlimited: bool = False) -> ScriptRecord:
        environment = place.environment(
            num_processes=num_processes, strict=strict, events=events, unlimited=unlimited
        ) | dict(launched)
        with _temporary_folder() as folder:
            task = replace(job, folder=str(folder), snapshot=False, breakdown=False)
            return run_in_process(task, place.executable, environment, timeout_s=timeout_s)

    return again


def _with_needs(record: ScriptRecord, job: ScriptJob, again: Again) -> ScriptRecord:
    """Add what the script would have needed; nothing if it does not end well on a card of unlimited memory either."""
    print_line("Memory ran out. Once more on a card of unlimited memory:")
    gpu = KNOWN_GPUS[str(job.spec.gpu)]
    card = NamedCard(uuid="", name=gpu.title, memory_bytes=UNLIMITED_BYTES, compute_capability=gpu.compute_capability)
    outcome = again(replace(job, card=card), unlimited=True).outcome
    if outcome.status is not Status.OK or outcome.peaks.allocated_bytes is None:
        return record
    needs = UnlimitedCard(
        required_allocated_bytes=outcome.peaks.allocated_bytes, required_reserved_bytes=outcome.peaks.reserved_bytes
    )
    return replace(record, outcome=replace(record.outcome, unlimited=needs))


def _with_late_events(record: ScriptRecord, job: ScriptJob, again: Again) -> ScriptRecord:
    print_line("Once more with late events:")
    outcome = again(job, events=Events.LATE).outcome
    late = LateEvents(
        status=outcome.status,
        allocated_bytes=outcome.peaks.allocated_bytes,
        reserved_bytes=outcome.peaks.reserved_bytes,
    )
    return replace(record, late_events=late)
