"""A folder is what one can survey, and a file is one subject."""

from collections import Counter
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("profiler", "maintenance", "grpo_vram")
MOST_FILES, MOST_LINES = 9, 400
MOST_FILES_OF_PROFILER = 480
"""The own files of packages not counted. The number may fall only."""
MEDIAN_LINES = (100, 210)
"""The median of the lines of those files lies between: fewer are scraps, and more are several subjects."""

LONGER = {
    "profiler/domain/architectures/families.py": "a row per model family",
    "profiler/domain/trials/trial.py": "a row per key of a trial, with meaning, default and values",
    "profiler/simulation/cuda/fused_attention/attention.py": "each kernel, and its tensors in forward and backward",
    "profiler/simulation/device/simulated_gpu.py": "the functions of torch that a simulated GPU replaces, in one list",
    "profiler/cluster/ray_cluster.py": "all that is known of Ray, with its actor",
    "profiler/domain/runs/outcome.py": "a row per stored field of an outcome",
}
"""Files that are longer, and why; each is a list of one kind of thing."""


def modules(root: Path, packages: tuple[str, ...] = PACKAGES) -> list[Path]:
    return [path for package in packages for path in sorted((root / package).rglob("*.py"))]


def crowded(root: Path, packages: tuple[str, ...] = PACKAGES) -> dict[str, int]:
    """Folders with too many files, the package's own file not counted."""
    files = Counter(path.parent for path in modules(root, packages) if path.name != "__init__.py")
    return {folder.relative_to(root).as_posix(): count for folder, count in files.items() if count > MOST_FILES}


def long(root: Path, packages: tuple[str, ...] = PACKAGES) -> set[str]:
    paths = modules(root, packages)
    return {
        path.relative_to(root).as_posix() for path in paths if len(path.read_text("utf-8").splitlines()) > MOST_LINES
    }


def test_no_folder_has_more_files_than_one_can_survey():
    assert crowded(ROOT) == {}


def test_no_file_is_longer_than_one_subject_but_for_lists():
    assert long(ROOT) == set(LONGER)


@pytest.mark.parametrize(("count", "lines", "found"), [(9, 400, False), (10, 401, True)])
def test_what_is_too_much_is_seen(tmp_path, count, lines, found):
    for number in range(count):
        path = tmp_path / "profiler" / "part" / f"{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n" * (lines if number == 0 else 1))
    assert bool(crowded(tmp_path)) == found
    assert bool(long(tmp_path)) == found


def limits_broken(root: Path) -> set[str]:
    paths = [path for path in modules(root, ("profiler",)) if path.name != "__init__.py"]
    least, most = MEDIAN_LINES
    middle = median(len(path.read_text("utf-8").splitlines()) for path in paths)
    found = {"files": len(paths) > MOST_FILES_OF_PROFILER, "median": not least <= middle <= most}
    return {name for name, broken in found.items() if broken}


def test_files_are_neither_scraps_nor_heaps():
    assert limits_broken(ROOT) == set()


@pytest.mark.parametrize(
    ("count", "lines", "broken"),
    [
        (MOST_FILES_OF_PROFILER, 150, set()),
        (MOST_FILES_OF_PROFILER + 1, 150, {"files"}),
        (3, MEDIAN_LINES[0] - 1, {"median"}),
        (3, MEDIAN_LINES[1] + 1, {"median"}),
    ],
)
def test_a_broken_limit_of_all_files_is_seen(tmp_path, count, lines, broken):
    (tmp_path / "profiler").mkdir()
    (tmp_path / "profiler" / "__init__.py").write_text("")
    for number in range(count):
        (tmp_path / "profiler" / f"{number}.py").write_text("\n" * lines)
    assert limits_broken(tmp_path) == broken
