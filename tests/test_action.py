"""`action.yml`: its steps run here as GitHub runs them, with the inputs in the environment."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
INSTALL, ESTIMATE = ACTION["runs"]["steps"]
RECIPE = "model_name_or_path: Qwen/Qwen2.5-7B\nuse_peft: true\nnum_generations: 8\ndtype: bfloat16\n"


def _run(step: dict, folder: Path, *, environment: dict[str, str] | None = None, **inputs: str):
    """Run one step in `folder`; inputs that are left out have their defaults."""
    given = {name: inputs.get(name, each.get("default")) for name, each in ACTION["inputs"].items()}
    assert None not in given.values(), "an input that is required is missing"

    def filled(text: str) -> str:
        text = re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda found: str(given[found[1]]), text)
        return text.replace("${{ github.action_path }}", str(ROOT))

    own = {name: filled(value) for name, value in step["env"].items()}
    assert step["shell"] == "bash"
    # As GitHub does for `shell: bash`.
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    summary = {"GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **summary, **own, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )


def test_no_input_is_part_of_a_script():
    """An input inside a script could be a command; it is a value of the environment."""
    assert all("${{" not in step["run"] for step in ACTION["runs"]["steps"])


def test_the_profiler_is_installed(tmp_path):
    """pip gets the package, and no shell splits its name."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > installed\n')
    python.chmod(0o755)
    found = _run(INSTALL, tmp_path, config="x", gpu="t4", python=str(python))
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
    found = _run(ESTIMATE, tmp_path, environment={"PYTHONPATH": str(ROOT)}, **inputs)
    summary = (tmp_path / "summary.md").read_text()
    assert (found.returncode, found.stderr) == (code, "")
    assert summary.startswith(f"### GPU memory: `grpo.yaml` on {gpu} {says}")
    assert found.stdout.strip() in summary


def test_several_files_are_one_job(tmp_path):
    (tmp_path / "grpo.yaml").write_text(RECIPE)
    (tmp_path / "accelerate.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 4\n")
    inputs = {"config": "grpo.yaml accelerate.yaml", "gpu": "h100", "python": sys.executable}
    found = _run(ESTIMATE, tmp_path, environment={"PYTHONPATH": str(ROOT)}, **inputs)
    assert found.returncode == 0, found.stdout
    assert "DDP on 4 GPUs" in " ".join(found.stdout.split())
