"""Children of this program find modules where it finds them itself: not in a folder of somebody else."""

import subprocess
import sys
from pathlib import Path

import pytest

from profiler.domain.machines import extras
from profiler.domain.machines.extras import safe_path_flags, safe_path_variables

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("entry", "is_safe"), [("", False), ("{cwd}", False), ("/elsewhere", True)])
def test_the_current_folder_is_searched_by_a_child_only_if_it_is_here(monkeypatch, tmp_path, entry, is_safe):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(extras.sys, "path", [entry.format(cwd=tmp_path), "/usr/lib"])
    assert safe_path_flags() == (("-P",) if is_safe else ())
    assert safe_path_variables() == ({"PYTHONSAFEPATH": "1"} if is_safe else {})


@pytest.mark.slow
def test_the_console_script_and_its_workers_import_nothing_of_the_current_folder(tmp_path):
    """A simulated trial: a warmed process, which imports torch, and a worker forked from it."""
    for name in ("yaml", "socket", "selectors", "numpy", "torch", "transformers", "datasets"):
        (tmp_path / f"{name}.py").write_text("import os\nos.mkdir('was run')\nraise SystemExit(0)\n")
    words = ["+grid=lora_vs_full", "model=tiny", "tuning=lora", "backend=simulated", "results_dir=results"]
    script = f"import sys; sys.path[:0] = [{str(ROOT)!r}]; from profiler.console import main; sys.exit(main())"
    command = [sys.executable, "-P", "-c", script, "sweep", *words, "optim=adamw_torch", "gradient_checkpointing=false"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert not (tmp_path / "was run").exists()
    assert done.returncode == 0, done.stdout + done.stderr
