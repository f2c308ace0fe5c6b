"""Documents name files, modules and checks that exist."""

import re
import shlex
import tomllib
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

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
COMMAND = re.compile(
    r"^(?:\.venv/bin/)?python -m profiler\.(advise|estimate|replay|report|solve|sweep) (.*?)(?: +#.*)?$", re.MULTILINE
)
READERS = {
    name: import_module(f"profiler.{name}.command").read_command
    for name in ("advise", "estimate", "replay", "report", "solve", "sweep")
}
"""Of commands whose words need no file of the reader to be read."""


def commands_of(page):
    """The name and the words of each command that a page shows, without placeholders."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [(name, shlex.split(words)) for name, words in COMMAND.findall("\n".join(blocks)) if "NAME" not in words]


WITH_COMMANDS = [page for page in DOCUMENTS if commands_of(page)]


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_documents_are_valid(page):
    for name, words in commands_of(page):
        command = READERS[name](words)
        assert list(getattr(command, "faults", ())) == []
        assert set(getattr(command, "grids", ())) <= {path.stem for path in (ROOT / "sweeps" / "grid").glob("*.yaml")}


def test_many_pages_have_commands():
    found = [name for page in WITH_COMMANDS for name, _ in commands_of(page)]
    assert len(WITH_COMMANDS) >= 20
    assert len(found) >= 80
    assert set(found) == set(READERS)


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_and_modules_in_documents_exist(page):
    text = page.read_text()
    assert [name for name in PATH.findall(text) if not (ROOT / name).exists()] == []
    assert [name for name in MODULE.findall(text) if find_spec(name) is None] == []


@cache
def modules() -> tuple[str, ...]:
    """Return all modules, from the root, once for all pages."""
    tops = ("profiler", "maintenance", "tests")
    return tuple(f"/{path.relative_to(ROOT)}" for top in tops for path in (ROOT / top).rglob("*.py"))


@pytest.mark.parametrize("page", [page for page in DOCUMENTS if page not in OF_OTHERS], ids=lambda page: page.name)
def test_files_that_documents_name_by_their_last_parts_exist(page):
    assert [
        name
        for name in SHORT_NAME.findall(page.read_text())
        if not any(each.endswith(f"/{name}") for each in modules())
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
    rules = dict(rule.split(":", 1) for rule in (ROOT / "Makefile").read_text().split("\n\n") if ":" in rule)
    recipe = "".join(rules[part] for part in rules["check"].split())
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    tools = {hook["entry"].split()[0].removeprefix(".venv/bin/") for hook in hooks}
    assert tools == set(re.findall(r"\$\(BIN\)/([\w-]+)", recipe))
