"""What continuous integration emulates: five sampled trials where an environment is at hand, and nothing elsewhere."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CI = Path(__file__).parents[2] / ".ci" / "run"


@pytest.fixture
def clone(tmp_path):
    """A folder with the script, and with a `make` that writes down what it is asked for."""
    for name, text in {
        "scripts/install_browser.sh": "",
        "bin/make": 'echo "$@" >> "$MADE"; exit "${MAKE_EXIT:-0}"',
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/usr/bin/env bash\n{text}\n")
        path.chmod(0o755)
    (tmp_path / ".ci").mkdir()
    shutil.copy(CI, tmp_path / ".ci" / "run")
    return tmp_path


def run(clone, **variables):
    """Run the script; return its exit code, what it asked `make` for, and its standard error."""
    made = clone / "made"
    base = {name: value for name, value in os.environ.items() if name != "EMULATION_PYTHON"}
    environment = base | {"PATH": f"{clone / 'bin'}:{os.environ['PATH']}", "MADE": str(made)} | variables
    done = subprocess.run([clone / ".ci" / "run"], env=environment, capture_output=True, text=True, check=False)
    return done.returncode, made.read_text().splitlines(), done.stderr


def test_five_trials_are_emulated_where_an_environment_is_at_hand(clone):
    code, made, _ = run(clone, EMULATION_PYTHON="/some/python")
    assert code == 0
    assert made[:2] == ["test", "matrix"]
    assert made[2].startswith("emulated ARGS=limit=5 results_dir=/")


def test_without_an_environment_they_are_skipped_with_the_reason(clone):
    code, made, err = run(clone)
    assert (code, made) == (0, ["test", "matrix"])
    assert "EMULATION_PYTHON names no Python" in err


def test_a_failing_test_ends_the_run(clone):
    code, made, _ = run(clone, EMULATION_PYTHON="/some/python", MAKE_EXIT="2")
    assert (code, made) == (2, ["test"])
