"""What the wheel holds, by the build configuration in pyproject.toml."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
WHEEL = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
PACKED = WHEEL["hooks"]["custom"]["texts"]
"""By `hatch_build.py`, of which test_bare_distribution.py has tests."""


OF_A_CLONE = (
    "profiler/allocator/traces/smallest_fit.c",
    "profiler/analysis/claim_trials.py",
    "profiler/claims/command.py",
    "profiler/claims/figures.py",
    "profiler/claims/main.py",
    "profiler/config/claims",
    "profiler/published/claims.yaml",
    "profiler/published/counted.csv",
    "profiler/published/engine_logs.csv",
    "profiler/published/looked_up.csv",
    "profiler/rendering/claims.py",
    "profiler/rendering/figures/claims.py",
)
"""What judges public texts by kept results, a table that `maintenance` reads, and what `make install` compiles."""


def in_the_wheel() -> set[str]:
    """Paths in the wheel: the files of its packages, and those that are included under another name."""
    found = {str(path.relative_to(ROOT)) for package in WHEEL["packages"] for path in (ROOT / package).rglob("*")}
    for source, target in WHEEL["force-include"].items():
        found |= {str(Path(target) / path.relative_to(ROOT / source)) for path in (ROOT / source).rglob("*")}
    return found


def test_the_wheel_has_the_library_its_data_and_the_grids():
    found = in_the_wheel()
    data = ("profiler/published/measurements.csv", "profiler/config/verl/defaults.json")
    assert set(data) <= set(PACKED)
    for path in ("profiler/py.typed", "grpo_vram/__init__.py", "grpo_vram/py.typed", *data):
        assert path in found
    grids = [path.name for path in (ROOT / "sweeps" / "grid").glob("*.yaml")]
    assert "lora_vs_full.yaml" in grids
    assert {f"profiler/sweeps/grid/{name}" for name in grids} | {"profiler/sweeps/config.yaml"} <= found


def test_the_wheel_has_neither_tests_nor_tools_of_maintenance():
    # Further settings of hatchling may add files.
    assert set(WHEEL) == {"packages", "exclude", "hooks", "force-include"}
    names = ("emulation/driver", "emulation/inside", "simulation", "substitutes", "training", "worker")
    folders = [f"profiler/{name}" for name in names]
    assert WHEEL["exclude"] == sorted([*folders, *OF_A_CLONE, *PACKED])
    assert all((ROOT / path).exists() for path in WHEEL["exclude"])
    assert WHEEL["packages"] == ["grpo_vram", "profiler"]
    assert {path.partition("/")[0] for path in in_the_wheel()} == {"grpo_vram", "profiler"}
    assert not [path for path in in_the_wheel() if re.search(r"(^|/)(tests?|maintenance)(/|$)|/test_", path)]


FORMER = re.compile("grpo[-_]vram[-_]profiler")
STILL_HAVE_IT = {
    "profiler/cluster/__init__.py": "the same folder, in a limit",
    "profiler/domain/machines/extras.py": "the check for a conflict",
    "profiler/emulation/main.py": "its help text",
    "profiler/emulation/interpreter.py": "a folder of the user that keeps its name",
    "profiler/execution/gpus.py": "a file that earlier versions lock as well",
    "profiler/rendering/figures/theme.py": "a salt",
}


def test_the_former_name_is_only_where_users_have_it():
    files = [path for top in ("grpo_vram", "profiler", "examples", "scripts") for path in (ROOT / top).rglob("*")]
    texts = {path: path.read_text(errors="ignore") for path in files if path.is_file() and path.suffix != ".pyc"}
    assert {str(path.relative_to(ROOT)) for path, text in texts.items() if FORMER.search(text)} == {*STILL_HAVE_IT}


def test_what_the_project_says_of_itself_is_true():
    minimum = PROJECT["requires-python"].removeprefix(">=")
    assert f"Programming Language :: Python :: {minimum}" in PROJECT["classifiers"]
    assert PYPROJECT["tool"]["ruff"]["target-version"] == f"py{minimum.replace('.', '')}"
    assert "Apache License" in (ROOT / PROJECT["license-files"][0]).read_text()
