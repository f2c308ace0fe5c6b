"""Documents name files, modules and checks that exist."""

import re
import shlex
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from profiler.estimate.command import read_command as read_estimate
from profiler.replay.command import read_command as read_replay
from profiler.sweep.command import read_command as read_sweep

ROOT = Path(__file__).parents[1]
DECISIONS = ROOT / "docs" / "decisions"
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
PATH = re.compile(r"`((?:profiler|maintenance|tests|sweeps|scripts|docs|examples|notebooks)/[a-z0-9_./]*)(?:::\w+)?`")
SHORT_NAME = re.compile(r"`([a-z0-9_]+(?:/[a-z0-9_]+)*\.py)`")
OF_OTHERS = (ROOT / "docs" / "explanation" / "scripts_tried.md", ROOT / "docs" / "reference" / "python_api.md")
"""Name scripts of others."""
MODULE = re.compile(r"python -m ((?:profiler|maintenance)\.[a-z_]+)")
COMMAND = re.compile(r"^(?:\.venv/bin/)?python -m profiler\.(sweep|estimate|replay) (.*?)(?:  #.*)?$", re.MULTILINE)
READERS = {"estimate": read_estimate, "replay": read_replay, "sweep": read_sweep}


@pytest.mark.parametrize("page", ["README.md", "docs/how_to/sweep.md", "docs/how_to/recipe.md"])
def test_commands_in_documents_are_valid(page):
    found = COMMAND.findall((ROOT / page).read_text())
    assert len(found) >= 3
    for name, words in found:
        command = READERS[name](shlex.split(words))
        assert list(command.faults) == []
        assert set(getattr(command, "grids", ())) <= {path.stem for path in (ROOT / "sweeps" / "grid").glob("*.yaml")}


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_and_modules_in_documents_exist(page):
    text = page.read_text()
    assert [name for name in PATH.findall(text) if not (ROOT / name).exists()] == []
    assert [name for name in MODULE.findall(text) if find_spec(name) is None] == []


@pytest.mark.parametrize("page", [page for page in DOCUMENTS if page not in OF_OTHERS], ids=lambda page: page.name)
def test_files_that_documents_name_by_their_last_parts_exist(page):
    ours = [
        f"/{path.relative_to(ROOT)}"
        for top in ("profiler", "maintenance", "tests")
        for path in (ROOT / top).rglob("*.py")
    ]
    assert [
        name for name in SHORT_NAME.findall(page.read_text()) if not any(each.endswith(f"/{name}") for each in ours)
    ] == []


def test_every_decision_is_in_the_index_and_has_the_same_parts():
    index = (DECISIONS / "README.md").read_text()
    pages = [page for page in DECISIONS.glob("*.md") if page.name != "README.md"]
    assert len(pages) >= 9
    for page in pages:
        text = page.read_text()
        number = page.name.partition("_")[0]
        assert f"[{number}]({page.name})" in index
        assert text.startswith(f"# {number}. ")
        for part in ("## Problem", "## Decision", "## Consequences"):
            assert part in text
        assert len(text.split()) <= 400


def test_the_workflow_runs_make_test_with_the_version_of_the_project():
    (job,) = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())["jobs"].values()
    assert job["steps"][-1] == {"run": "make test"}
    (version,) = (step["with"]["python-version"] for step in job["steps"] if "python-version" in step.get("with", {}))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"Programming Language :: Python :: {version}" in project["classifiers"]


def test_pre_commit_runs_the_tools_of_make_check():
    recipe = (ROOT / "Makefile").read_text().partition("\ncheck:")[2].partition("\n\n")[0]
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    tools = {hook["entry"].split()[0].removeprefix(".venv/bin/") for hook in hooks}
    assert tools == set(re.findall(r"\$\(BIN\)/([\w-]+)", recipe))
