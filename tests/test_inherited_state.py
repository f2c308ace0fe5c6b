"""The tests see the same, whatever shell or scheduler starts them."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parents[1]

_SHOWS = """
import os, signal, subprocess, sys
sys.path.insert(0, sys.argv[1])
import conftest
ignored = "import signal as s; print([n.name for n in (s.SIGINT, s.SIGHUP) if s.getsignal(n) is s.SIG_IGN])"
print(subprocess.run([sys.executable, "-c", ignored], capture_output=True, text=True).stdout.strip())
print(sorted(set(os.environ) & {"http_proxy", "CUDA_VISIBLE_DEVICES", "COLUMNS", "HF_HOME", "PYTHONSAFEPATH"}))
print(os.access(os.environ["HOME"], os.W_OK), f"{os.umask(0):o}", os.environ["LC_ALL"])
"""
_SAME = ["[]", "[]", "True 22 C.UTF-8"]


@pytest.mark.parametrize(
    "shell",
    [
        "trap '' HUP",
        "trap '' INT HUP",
        "umask 077",
        "export HOME=/nonexistent LC_ALL=C LANG=tr_TR",
        "unset HOME",
        "export http_proxy=http://nowhere:1 CUDA_VISIBLE_DEVICES=3 COLUMNS=30 HF_HOME=/x PYTHONSAFEPATH=1",
        "exec < /dev/null",
    ],
)
def test_what_a_shell_hands_on_changes_nothing(shell):
    shows = shlex.join([sys.executable, "-c", _SHOWS, str(ROOT / "tests")])
    done = subprocess.run(["/bin/sh", "-c", f"{shell}; exec {shows}"], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == _SAME, done.stderr


@pytest.mark.parametrize("ci", ["", "true"])
def test_hypothesis_takes_the_same_examples_each_time(ci):
    program = "import sys; sys.path.insert(0, sys.argv[1]); import conftest; from hypothesis import settings as s; "
    program += "print(s.default.derandomize, s.default.max_examples)"
    command = [sys.executable, "-c", program, str(ROOT / "tests")]
    environment = {name: value for name, value in os.environ.items() if name != "CI"} | ({"CI": ci} if ci else {})
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "25"]
    assert settings.default is not None
