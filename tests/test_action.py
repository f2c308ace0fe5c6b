"""`action.yml`: its steps run here as GitHub runs them, with the inputs in the environment."""

import sys

import pytest
from action_steps import ACTION, ESTIMATE, INSTALL, RECIPE, ROOT, run_step


def test_no_input_is_part_of_a_script():
    """An input inside a script could be a command; it is a value of the environment."""
    assert all("${{" not in step["run"] for step in ACTION["runs"]["steps"])


def test_the_profiler_is_installed(tmp_path):
    """pip gets the package, and no shell splits its name; with the built wheel, `tests/test_bare_distribution.py`."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > installed\n')
    python.chmod(0o755)
    found = run_step(INSTALL, tmp_path, config="x", gpu="t4", python=str(python))
    assert found.returncode == 0, found.stderr
    words = (tmp_path / "installed").read_text().splitlines()
    assert (words[:3], words[-1]) == (["-m", "pip", "install"], str(ROOT))


@pytest.mark.parametrize(
    ("gpu", "extra", "code", "says"),
    [
        ("h100", {}, 0, "fits, by fail_if=does_not_fit"),
        ("t4", {}, 4, "does not pass fail_if=does_not_fit"),
        (
            "l4",
            {"arguments": "model=qwen2.5-0.5b max_completion_length=128", "fail_if": "tight"},
            0,
            "fits, by fail_if",
        ),
        ("nosuch", {}, 2, "has no estimate"),
    ],
)
def test_a_recipe_is_guarded(tmp_path, gpu, extra, code, says):
    (tmp_path / "grpo.yaml").write_text(RECIPE)
    inputs = {"config": "grpo.yaml", "gpu": gpu, "python": sys.executable, **extra}
    found = run_step(ESTIMATE, tmp_path, environment={"PYTHONPATH": str(ROOT)}, **inputs)
    summary = (tmp_path / "summary.md").read_text()
    assert (found.returncode, found.stderr) == (code, "")
    assert summary.startswith(f"### GPU memory: `grpo.yaml` on {gpu} {says}")
    assert "\n".join(found.stdout.splitlines()[1:-1]).strip() in summary


def test_several_files_are_one_job(tmp_path):
    (tmp_path / "grpo.yaml").write_text(RECIPE)
    (tmp_path / "accelerate.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 4\n")
    inputs = {"config": "grpo.yaml accelerate.yaml", "gpu": "h100", "python": sys.executable}
    found = run_step(ESTIMATE, tmp_path, environment={"PYTHONPATH": str(ROOT)}, **inputs)
    assert found.returncode == 0, found.stdout
    assert "DDP on 4 GPUs" in " ".join(found.stdout.split())


def test_no_module_of_the_workspace_is_imported(tmp_path):
    """A pull request has any files: `python -m` imports its modules before those that are installed."""
    for name in ("yaml", "pip", "sysconfig", "secrets", "json", "profiler", "socket", "torch", "numpy"):
        (tmp_path / f"{name}.py").write_text("import os\nos.mkdir('was run')\nraise SystemExit(0)\n")
    (tmp_path / "grpo.yaml").write_text(RECIPE)
    inputs = {"config": "grpo.yaml", "gpu": "t4", "python": sys.executable}
    found = run_step(ESTIMATE, tmp_path, environment={"PYTHONPATH": str(ROOT)}, **inputs)
    assert found.returncode == 4, found.stdout + found.stderr
    run_step(INSTALL, tmp_path, config="x", gpu="t4", python=sys.executable, package="--version")
    assert not (tmp_path / "was run").exists()


def test_what_a_recipe_says_is_neither_a_command_nor_markdown(tmp_path):
    (tmp_path / "grpo.yaml").write_text("'::add-mask::secret': 1\n'```': 2\n" + RECIPE)
    inputs = {"config": "grpo.yaml", "gpu": "t4", "python": sys.executable}
    found = run_step(ESTIMATE, tmp_path, environment={"PYTHONPATH": str(ROOT)}, **inputs)
    first, *_, last = found.stdout.splitlines()
    assert first.startswith("::stop-commands::")
    assert last == f"::{first.removeprefix('::stop-commands::')}::"
    assert len(last) > 30
    summary = (tmp_path / "summary.md").read_text()
    assert summary.count("`" * 16) == 2
