"""The process of a script: start, time limit, and a record for a process that wrote none."""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import profiler
from profiler.domain.outcome import Outcome, Status, Verdict, Work
from profiler.domain.script import ScriptEnding, ScriptJob, ScriptRecord
from profiler.storage.script_records import ScriptStore
from profiler.storage.typed_json import to_json

_PROGRAM = Path(profiler.__file__).parent / "worker" / "script_process.py"
_GRACE_S = 10.0
"""How long a script has to end after SIGINT, by which its `finally` blocks run."""


@dataclass(frozen=True, kw_only=True)
class _Ended:
    exit_code: int
    """Negative: minus the number of a signal."""
    timed_out: bool
    wall_s: float


def run_in_process(
    job: ScriptJob, executable: Path, environment: Mapping[str, str], *, timeout_s: float
) -> ScriptRecord:
    """Run the job in a process of its own, whose output is that of this command, and return its record."""
    store = ScriptStore(Path(job.folder))
    store.remove(job.run_id)
    ended = _run(job, executable, environment, timeout_s)
    record = store.find(job.run_id)
    if record is None:
        record = _of_lost_process(job, ended, timeout_s)
        store.write(record)
    elif ended.timed_out:
        # It was interrupted, and has kept its peaks so far.
        status, message = _verdict(ended, timeout_s)
        verdict = replace(record.outcome.verdict, status=status, message=message)
        record = replace(record, outcome=replace(record.outcome, verdict=verdict))
        store.write(record)
    return record


def _run(job: ScriptJob, executable: Path, environment: Mapping[str, str], timeout_s: float) -> _Ended:
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.json"
        path.write_text(json.dumps(to_json(job)))
        process = subprocess.Popen(
            [str(executable), str(_PROGRAM), str(path)],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        timed_out = False
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            # Also after an interruption, and for processes that the script has left.
            _end_group(process)
    return _Ended(exit_code=process.returncode, timed_out=timed_out, wall_s=time.monotonic() - started_s)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _of_lost_process(job: ScriptJob, ended: _Ended, timeout_s: float) -> ScriptRecord:
    status, message = _verdict(ended, timeout_s)
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
    return Status.FAILED, f"the process of the script ended with exit code {ended.exit_code} and without a record"
