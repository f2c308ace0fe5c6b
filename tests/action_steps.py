"""Running of the steps of `action.yml` as GitHub runs them, with the inputs in the environment."""

import os
import re
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
INSTALL, ESTIMATE = ACTION["runs"]["steps"]
RECIPE = "model_name_or_path: Qwen/Qwen2.5-7B\nuse_peft: true\nnum_generations: 8\ndtype: bfloat16\n"


def run_step(step: dict, folder: Path, *, environment: dict[str, str] | None = None, **inputs: str):
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
