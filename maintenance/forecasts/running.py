"""Both sides of a run: the trainer in a process of its own, and the forecast. Each leaves a file of JSON lines."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from maintenance.forecasts.jobs import Job, Run
from profiler.config.trials.identity import spec_to_mapping
from profiler.domain.cards.card import cuda_context_bytes
from profiler.domain.cards.gpu import KNOWN_GPUS, Gpu
from profiler.domain.errors import ProfilerError, shortened
from profiler.domain.memory import MIB
from profiler.domain.trials.trial import Backend
from profiler.emulation.launch import EmulatedPython, process_environment

PROGRAM = Path(__file__).with_name("whole_run.py")

_PAGE_BYTES = 2 * MIB
"""The driver gives memory in whole pages of this size."""

Line = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Files:
    """Where the lines of each side are."""

    folder: Path

    def trained(self, run: Run) -> Path:
        """Return the file of the trainer; it is whole if its last line is the end."""
        return self.folder / f"{run.name}.{run.job.side}.jsonl"

    def forecast(self, run: Run) -> Path:
        """Return the file of the forecast, which is written at once."""
        return self.folder / f"{run.name}.forecast.jsonl"


def lines_of(path: Path) -> list[Line]:
    """Return the lines of a file; none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def has_ended(path: Path) -> bool:
    """Whether the file has a run to its end, or to the request that was refused."""
    lines = lines_of(path)
    return bool(lines) and lines[-1]["kind"] == "end"


# ---- the forecast ----------------------------------------------------------------------------------------------------


def forecast(job: Job, runs: Sequence[Run], files: Files) -> None:
    """Forecast runs of a job.

    Raises:
        UnequalStepsError: Its steps cannot be written out.
    """
    from profiler.worker.forecast import replayed
    from profiler.worker.forecast_steps import learn, written_steps
    from profiler.worker.simulated import card_of

    steps = list(written_steps(job.spec, learn(job.spec, job.model_config, [job.rows]), job.rows))

    def replay(run: Run, capacity_bytes: int, most_steps: int | None = None) -> list[Line]:
        found = replayed(steps[:most_steps], seed=0, alloc_conf=run.alloc_conf, capacity_bytes=capacity_bytes)
        return [_line(each) for each in found]

    for run in runs:
        capacity = limit_bytes(run, files) or card_of(job.spec).usable_bytes
        if run.is_small and job.backend is Backend.EMULATED:
            part = 2 * job.spec.steps // 3
            whole = replay(run, capacity, part)
            capacity = smallest_capacity_bytes(
                max(line["allocated_bytes"] for line in whole),
                max(line["reserved_bytes"] for line in whole),
                lambda tried, run=run, part=part: replay(run, tried, part)[-1]["kind"] == "step",  # type: ignore[misc]
            )
        _write(files.forecast(run), [*replay(run, capacity), {"kind": "end", "capacity_bytes": capacity}])


def smallest_capacity_bytes(least_bytes: int, enough_bytes: int, survives: Callable[[int], bool]) -> int:
    """Return the smallest capacity that is enough, in whole pages, within 1/200, by halving what lies between.

    Args:
        least_bytes: Nothing below it is enough.
        enough_bytes: This is.
        survives: Whether a capacity is enough.
    """
    low, high = (-(-size // _PAGE_BYTES) for size in (least_bytes, enough_bytes))
    while high - low > high // 200:
        middle = (low + high) // 2
        low, high = (low, middle) if survives(middle * _PAGE_BYTES) else (middle + 1, high)
    return high * _PAGE_BYTES


def _line(found: Any) -> Line:  # noqa: ANN401  # a step or a death; their module imports torch
    names = ("step", "phase", "allocated_bytes", "reserved_bytes", "reserved_after_bytes", "inactive_split_bytes")
    refused = ("requested_bytes", "free_bytes")
    is_step = hasattr(found, "reserved_after_bytes")
    values = {name: getattr(found, name) for name in (*names, *refused) if hasattr(found, name)}
    return {"kind": "step" if is_step else "died", **values}


def _write(path: Path, lines: Sequence[Line]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


# ---- the trainer -----------------------------------------------------------------------------------------------------


class Train(Protocol):
    """Runs the trainer of one run: `emulate` or `measure`."""

    def __call__(self, run: Run, files: Files) -> None:
        """Leave the lines of the run."""


def card_of(run: Run, files: Files) -> Gpu:
    """Return the card of a run."""
    gpu = KNOWN_GPUS[str(run.job.spec.gpu)]
    if not run.is_small:
        return gpu
    capacity = lines_of(files.forecast(run))[-1]["capacity_bytes"]
    return replace(gpu, memory_bytes=capacity + cuda_context_bytes(gpu.compute_capability))


def emulate(run: Run, files: Files, *, python: EmulatedPython, timeout_s: float) -> None:
    """Run the trainer in torch's CUDA build on the card of the run.

    Raises:
        ProfilerError: It ended with an error.
        subprocess.TimeoutExpired: It took too long; the run begins anew with the next call.
    """
    environment = process_environment(python, card_of(run, files), base=os.environ)
    _train(run, files, executable=python.executable, environment=environment, timeout_s=timeout_s)


def limit_bytes(run: Run, files: Files) -> int | None:
    """Return the limit of the allocator for a run on a real card; None: the whole card.

    It lies in the middle between what the first two thirds of the steps had allocated and what the allocator had
    reserved for them on the whole card, in whole pages.
    """
    if not run.is_small or run.job.backend is Backend.EMULATED:
        return None
    whole = [line for line in lines_of(files.trained(replace(run, is_small=False))) if line["kind"] == "step"]
    steps = whole[: 2 * run.job.spec.steps // 3]
    sizes = (max(line[f"{metric}_bytes"] for line in steps) for metric in ("allocated", "reserved"))
    return sum(sizes) // 2 // _PAGE_BYTES * _PAGE_BYTES


def measure(run: Run, files: Files, *, timeout_s: float) -> None:
    """Run the trainer on a real card, which other runs may share: torch's counters are those of one process.

    A run that fails or takes too long ends with the reason: the steps that it has are measured all the same.
    """
    folders = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
    try:
        _train(run, files, executable=Path(sys.executable), environment=environment, timeout_s=timeout_s)
    except subprocess.TimeoutExpired:
        stopped = f"the time limit of {timeout_s:g} s"
    except ProfilerError as error:
        stopped = str(error)
    else:
        return
    with files.trained(run).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"kind": "end", "stopped": stopped}) + "\n")


def _train(run: Run, files: Files, *, executable: Path, environment: Mapping[str, str], timeout_s: float) -> None:
    answer = files.trained(run)
    answer.parent.mkdir(parents=True, exist_ok=True)
    request, errors = answer.with_suffix(".request.json"), answer.with_suffix(".log")
    rows = run.job.rows
    request.write_text(
        json.dumps(
            {
                "spec": spec_to_mapping(replace(run.spec, backend=run.job.backend)),
                "model_config": dict(run.job.model_config),
                "prompts": rows.prompts,
                "completions": rows.completions,
                "shuffles": rows.shuffles,
                "limit_bytes": limit_bytes(run, files),
            }
        )
    )
    command = [str(executable), str(PROGRAM), str(request), str(answer)]
    environment = {**environment, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with errors.open("w", encoding="utf-8") as log:
        done = subprocess.run(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=log, timeout=timeout_s, check=False
        )
    if done.returncode:
        text = errors.read_text(encoding="utf-8", errors="replace").strip()
        last = (text.splitlines() or [f"exit code {done.returncode}"])[-1]
        raise ProfilerError(f"{run.name} ended early: {shortened(last, 500)}")


def run_pending(
    runs: Sequence[Run], files: Files, *, training: Train, at_most: int | None, jobs: int, say: Callable[[str], None]
) -> int:
    """Train and forecast the runs that have not ended, at most `at_most` trained ones; return how many are left.

    An emulated card is as small as its forecast says, so the forecast comes first. A real one is lent for minutes: its
    runs are forecast with ``at_most=0``, elsewhere.
    """
    for job in dict.fromkeys(run.job.name for run in runs):
        own = [run for run in runs if run.job.name == job]
        if own[0].job.backend is not Backend.EMULATED:
            own = [run for run in own if at_most == 0 and has_ended(files.trained(run))]
        if not all(has_ended(files.forecast(run)) for run in own):
            say(f"forecasting {job}")
            forecast(own[0].job, own, files)
    pending = [run for run in runs if not has_ended(files.trained(run))]
    now = pending[:at_most]
    # A small run on a real card needs the whole one.
    for wave in ([run for run in now if not run.is_small], [run for run in now if run.is_small]):
        with ThreadPoolExecutor(jobs) as pool:
            for run, _ in zip(wave, pool.map(partial(training, files=files), wave), strict=True):
                say(f"{run.name} has ended")
    return len(pending) - len(now)
