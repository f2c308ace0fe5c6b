"""What a release states in several files agrees: version and date, locked packages, workflows, classifiers."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from maintenance.lock import CUDA_LOCK, CUDA_PREFIXES, LOCK, TORCH_OF_CPU, pins, split
from profiler import __version__
from profiler.domain.errors import ProfilerError

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}
OF_CLUSTERS = {"ray", "msgpack", "protobuf", "grpcio"}
"""What the engines' environment adds to the one of `make install`."""
ENVIRONMENTS = {
    ".venv": ["pyproject.toml", "constraints.txt"],
    ".venv-engines": ["pyproject.toml", "constraints.txt"],
    ".venv-machines": ["pyproject.toml", "maintenance/environments/machines.txt"],
    ".venv-release": ["maintenance/environments/release.txt"],
    ".venv-docs": ["maintenance/environments/docs.txt"],
}
"""What the environments of the Makefile are made from."""


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_changelog_and_citation_name_the_version_and_its_date():
    version, date = re.search(r"^## (\d\S*) - (\d{4}-\d\d-\d\d)$", text("CHANGELOG.md"), re.MULTILINE).groups()
    cited = yaml.safe_load(text("CITATION.cff"))
    assert version == cited["version"] == __version__
    assert date == cited["date-released"]
    assert cited["license"] == PROJECT["license"]


def test_the_lock_has_the_versions_of_the_constraints():
    locked, pinned = pins(text(LOCK)), pins(text("constraints.txt"))
    assert locked == {name: version for name, version in pinned.items() if name not in OF_CLUSTERS}
    of_cuda = pins(text(CUDA_LOCK))
    assert of_cuda
    assert all(name.startswith(CUDA_PREFIXES) for name in of_cuda)


@pytest.mark.parametrize("path", [LOCK, CUDA_LOCK])
def test_every_locked_package_has_hashes(path):
    blocks = re.split(r"^(?=\w)", text(path), flags=re.MULTILINE)[1:]
    assert len(blocks) == len(pins(text(path)))
    assert all(re.fullmatch(r"\S+==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+\n", block) for block in blocks)


def test_torch_is_locked_as_the_index_has_it_and_for_the_cpu():
    version, digest = TORCH_OF_CPU
    (block,) = re.findall(r"^torch==[^a-z].*?(?=^\w)", text(LOCK), re.MULTILINE | re.DOTALL)
    assert block.startswith(f"torch=={version} ")
    assert f"--hash=sha256:{digest}" in block
    assert block.count("--hash") > 1


@pytest.mark.parametrize(("environment", "contents"), ENVIRONMENTS.items())
def test_an_environment_is_made_anew_when_its_contents_change(tmp_path, environment, contents):
    files = [tmp_path / name for name in contents]
    for path in (tmp_path / "Makefile", *files):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((ROOT / path.relative_to(tmp_path)).read_bytes())
    installed = tmp_path / environment / ".installed"
    installed.parent.mkdir()
    installed.touch()

    def would_install():
        words = ["make", "--dry-run", f"{environment}/.installed"]
        made = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
        return "pip install" in made.stdout

    os.utime(installed, (2, 2))
    for changed in files:
        for path in files:
            os.utime(path, (1, 1))
        assert not would_install()
        os.utime(changed, (3, 3))
        assert would_install(), changed


def test_every_environment_is_known_and_no_recipe_has_a_version():
    """What it contains is in a file on which it depends."""
    makefile = text("Makefile")
    assert len(re.findall(r"^\t\S+ -m venv ", makefile, re.MULTILINE)) == len(ENVIRONMENTS)
    assert re.findall(r".*[=<>]=\d.*", makefile) == []


def test_a_package_without_a_pin_is_refused():
    with pytest.raises(ProfilerError, match=r"constraints.txt has no version of b. Add b==2."):
        split("a==1 \\\n    --hash=x\nb==2 \\\n    --hash=y\n", {"a": "1"})


def test_only_publishing_has_a_token_and_only_for_a_checked_tag():
    jobs = WORKFLOWS["release"]["jobs"]
    assert WORKFLOWS["release"]["permissions"] == {"contents": "read"}
    assert [name for name, job in jobs.items() if "permissions" in job] == ["publish"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["needs"] == "build"
    runs = [step.get("run", "") for step in jobs["build"]["steps"]]
    assert "make dist" in runs
    assert any("exit(not ON_INDEX)" in run for run in runs)


def test_no_workflow_reads_what_others_write_into_a_shell():
    for name, workflow in WORKFLOWS.items():
        for job in workflow["jobs"].values():
            assert not [step for step in job["steps"] if "${{" in step.get("run", "")], name


def test_the_newest_releases_are_compared_every_week():
    """By the command of the documentation, with the torch of `constraints.txt`."""
    guard = WORKFLOWS["guard"]
    assert set(guard) == {"name", True, "permissions", "jobs"}, "YAML reads on as true"
    assert guard["permissions"] == {"contents": "read"}
    ((_, _, *days, weekday),) = (each["cron"].split() for each in guard[True]["schedule"])
    assert days == ["*", "*"]
    assert weekday in "0123456"
    (job,) = guard["jobs"].values()
    runs = [step["run"] for step in job["steps"] if "run" in step]
    assert runs[0] == "make install"
    assert "grep '^torch==' constraints.txt" in runs[1]
    assert "simulate" in PROJECT["optional-dependencies"]
    program, *words = runs[2].split()
    assert program == ".venv/bin/python"
    said = next(line for line in text("docs/how_to/sweep.md").splitlines() if "+grid=guard" in line).split()
    keys = [word for word in words if not word.startswith(("python=", "backend="))]
    assert keys == [word for word in said[1 : said.index("#")] if not word.startswith("python=")]
    assert (ROOT / "sweeps" / "grid" / "guard.yaml").exists()
    assert job["steps"][-1]["with"]["path"] == "results/guard"


def test_the_core_runs_on_every_system_and_python():
    matrix = WORKFLOWS["core"]["jobs"]["core"]["strategy"]["matrix"]
    assert [name.partition("-")[0] for name in matrix["os"]] == ["ubuntu", "macos", "windows"]
    assert matrix["python"] == ["3.11", "3.12", "3.13", "3.14"]
    seen = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if ":: Python :: 3." in line]
    assert seen
    assert set(seen) <= set(matrix["python"])
