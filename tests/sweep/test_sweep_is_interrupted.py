"""Signals and unforeseen errors: a sweep in its own process keeps tables and page of finished trials."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked import Forked, Forking
from witness import LIMIT_S, is_gone, wait_until

from profiler.storage.sweep_tables.tables import read_tables

PROGRAM = str(Path(__file__).parent / "sweep_process.py")
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

SHARED = "import sweep_process, profiler.report.main"
FORKED = "import sweep_process; sweep_process.run_sweep()"


def words(folder: Path, *more: str) -> list[str]:
    keys = ["model=tiny", "tuning=full", "gradient_checkpointing=false", "optim=adamw_torch", "backend=simulated"]
    return ["+grid=lora_vs_full", *keys, f"results_dir={folder}", *more]


def command(folder: Path, *more: str) -> list[str]:
    return [sys.executable, PROGRAM, *words(folder, *more)]


@pytest.fixture(scope="module")
def forking() -> Iterator[Forking]:
    """A process that has imported what a sweep imports, for sweeps that a terminal or a scheduler ends."""
    found = Forking(SHARED, ENVIRONMENT)
    yield found
    found.end()


Sweep = Forked | subprocess.Popen[str]


def one_hangs(folder: Path, sweep: Sweep) -> Sweep:
    """Wait until one trial of a sweep has finished and another one hangs."""
    # A file exists before its content.
    wait_until(lambda: any(file.read_text() for file in folder.rglob("*.hangs")) or sweep.poll() is not None)
    assert sweep.poll() is None, sweep.communicate()
    return sweep


def started(forking: Forking, folder: Path, *more: str, **how: object) -> Forked:
    """Start a sweep of two trials, of which one hangs."""
    line = words(folder, *more, "seed=0,1", "jobs=1")
    sweep = forking.start(FORKED, *line, folder=folder, environment=ENVIRONMENT, **how)
    return one_hangs(folder, sweep)


def by_shell(folder: Path, line: str) -> subprocess.Popen[str]:
    """Start a sweep by a line of a shell."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return one_hangs(folder, subprocess.Popen(["/bin/sh", "-c", line], env=ENVIRONMENT, text=True, **pipes))


def check_kept(folder: Path) -> None:
    results = folder / "lora_vs_full"
    assert list(read_tables(results).runs["status"]) == ["ok"]
    assert (results / "report.html").exists()
    assert (results / "report.md").exists()
    assert not list(folder.rglob("*.part"))
    assert all(is_gone(int(path.read_text())) for path in folder.rglob("*.hangs"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_tables_and_page_of_finished_trials(forking, tmp_path, number):
    sweep = started(forking, tmp_path)
    sweep.send_signal(number)
    _, errors = sweep.communicate(timeout=LIMIT_S)

    assert sweep.returncode == 128 + number
    by = "" if number is signal.SIGINT else f" by {number.name}"
    assert errors == f"Interrupted{by}. What has finished is kept; the same command continues from there.\n"
    check_kept(tmp_path)


def test_sigterm_to_every_process_of_the_session_loses_nothing(forking, tmp_path):
    sweep = started(forking, tmp_path, session=True)
    os.killpg(sweep.pid, signal.SIGTERM)
    sweep.communicate(timeout=LIMIT_S)

    assert sweep.returncode == 128 + signal.SIGTERM
    check_kept(tmp_path)


def test_sigint_ends_a_sweep_that_a_script_started_in_the_background(tmp_path):
    line = shlex.join(command(tmp_path, "seed=0,1", "jobs=1"))
    script = by_shell(tmp_path, f"{line} & echo $! > {tmp_path}/pid; wait $!")
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGINT)
    script.communicate(timeout=LIMIT_S)

    assert script.returncode == 128 + signal.SIGINT
    check_kept(tmp_path)


def test_further_signals_are_ignored(forking, tmp_path):
    sweep = started(forking, tmp_path)
    sweep.send_signal(signal.SIGTERM)
    (hanging,) = (int(path.read_text()) for path in tmp_path.rglob("*.hangs"))
    assert is_gone(hanging)
    sweep.send_signal(signal.SIGTERM)
    sweep.send_signal(signal.SIGINT)
    sweep.communicate(timeout=LIMIT_S)

    assert sweep.returncode == 128 + signal.SIGTERM
    check_kept(tmp_path)


def test_nohup_is_respected(forking, tmp_path):
    sweep = started(forking, tmp_path, ignored=[signal.SIGHUP])
    sweep.send_signal(signal.SIGHUP)
    sweep.send_signal(signal.SIGTERM)
    sweep.communicate(timeout=LIMIT_S)

    assert sweep.returncode == 128 + signal.SIGTERM


def test_an_unforeseen_error_is_one_sentence_with_a_file_and_keeps_the_tables(tmp_path):
    line = command(tmp_path, "break=run", "seed=0")
    done = subprocess.run(line, env=ENVIRONMENT, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    assert done.returncode == 70
    (file,) = (tmp_path / "lora_vs_full").glob("sweep-error-*.txt")
    assert done.stderr == (
        f"Unforeseen LookupError: this was unforeseen. The full text is in {file}. Please report it with that file.\n"
    )
    assert "Traceback" in file.read_text()
    assert "_run" in file.read_text()
    check_kept(tmp_path)


def test_tables_that_cannot_be_written_after_a_signal_do_not_change_the_exit_code(forking, tmp_path):
    sweep = started(forking, tmp_path, "break=tables")
    sweep.send_signal(signal.SIGINT)
    _, errors = sweep.communicate(timeout=LIMIT_S)

    assert sweep.returncode == 130
    assert [line.split(".")[0] for line in errors.splitlines()] == [
        "Unforeseen LookupError: this was unforeseen",
        "Interrupted",
    ]
    assert len(list((tmp_path / "lora_vs_full" / "records").glob("*.json"))) == 1
