"""`| head` and a closed terminal (row 19), with a real process and a pipe that is closed."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from profiler.command_line import readable

_SWEEP = """
import sys
sys.path[:0] = {path!r}
from dataclasses import replace
from pathlib import Path
from rich.console import Console
from sweep_fakes import FakeWorld
from profiler.domain.runs.outcome import Outcome, Status
from profiler.rendering.live.progress import SweepProgress
from profiler.sweep.main import main

class World(FakeWorld):
    def run_trials(self, plan, *, observer, **how):
        print("reading ended here", flush=True)
        {wait}
        for trial in plan:
            observer.started(trial)
            super().run_trials([trial], observer=observer, **how)
            observer.finished(trial, self.store.find(trial.trial_id))
        return ["a GPU was given up"]

def draw(folder, **how):
    Console().print("a table " * 20000)
    (folder / "drawn").touch()

world = World()
watch = lambda tally: SweepProgress(tally, console=Console())
code = main(
    ["+grid=lora_vs_full", "results_dir=" + {folder!r}],
    parts=replace(world.parts(), watch=watch, render_folder=draw),
)
Path({folder!r}, "result").write_text(f"{{code}} {{len(world.store.records)}} {{len(world.tables['records'])}}")
sys.exit(code)
"""


def program(folder: Path, wait: str = "sys.stdin.readline()") -> list[str]:
    return [sys.executable, "-c", _SWEEP.format(path=sys.path, folder=str(folder), wait=wait)]


@pytest.mark.parametrize("errors_too", [False, True], ids=["| head", "2>&1 | head"])
def test_the_sweep_continues_without_output_and_loses_nothing(tmp_path: Path, errors_too: bool) -> None:
    with subprocess.Popen(
        program(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if errors_too else subprocess.PIPE,
    ) as sweep:
        assert sweep.stdout is not None
        assert sweep.stdin is not None
        while sweep.stdout.readline() != b"reading ended here\n":
            pass
        sweep.stdout.close()
        sweep.stdin.write(b"\n")
        sweep.stdin.close()
        errors = b"" if errors_too else sweep.stderr.read()
        assert sweep.wait(300) == 0
    assert (tmp_path / "result").read_text() == "0 25 25"
    assert errors in (b"", b"a GPU was given up\n")


def test_a_full_disk_for_the_output_is_reported_once_and_loses_no_result(tmp_path: Path) -> None:
    words = [word.replace('print("reading ended here", flush=True)', "pass") for word in program(tmp_path, wait="pass")]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300, check=False)
    assert (tmp_path / "result").read_text() == "1 25 25"
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "Standard output cannot be written (No space left on device); the command goes on without it.",
        "a GPU was given up",
    ]


def test_an_open_pipe_gets_every_line(tmp_path: Path) -> None:
    done = subprocess.run(program(tmp_path), input="\n", capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "[25/25]" in done.stdout
    assert done.stdout.count("a table") == 20000
    assert (tmp_path / "lora_vs_full" / "drawn").exists()


def test_only_errors_of_closed_output_are_ignored() -> None:
    with pytest.raises(SystemExit), readable():
        sys.exit(3)
    with pytest.raises(FileNotFoundError), readable():
        Path("/no/such/file").read_text()
    with pytest.raises(OSError, match="No space"), readable():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
