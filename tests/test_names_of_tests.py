"""The name of a test says in at most 60 characters what holds."""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

TESTS = Path(__file__).parent
LONGEST = 60

_EARLIER = """
. 20, advise 5, allocator 24, analysis 9, callback 1, campaign 10, claims 3, cluster 27, config 35, constraints 1,
domain 4, emulated 4, emulation 23, execution 32, measurement 7, monitor 8, published 1, release 1, rendering 12,
replay 4, report 6, run 5, scripts 2, simulation 34, site 2, solve 2, storage 38, stress 1, substitutes 1, sweep 41,
training 13, worker 38
"""
LONGER = {folder: int(count) for folder, count in (each.split() for each in _EARLIER.split(","))}
"""Longer names of earlier tests by folder. A number may fall and not grow; a folder that is not here has none."""


def long_names(paths: Iterable[Path], root: Path) -> Counter[str]:
    """Return the number of longer names by folder."""
    found: Counter[str] = Counter()
    for path in paths:
        folder = path.relative_to(root).parts[0] if len(path.relative_to(root).parts) > 1 else "."
        names = re.findall(r"^\s*(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.M)
        found[folder] += sum(len(name) > LONGEST for name in names)
    return found


def test_names_are_short():
    found = long_names(TESTS.rglob("*.py"), TESTS)
    assert {folder: count for folder, count in found.items() if count > LONGER.get(folder, 0)} == {}


def test_a_longer_name_is_found(tmp_path):
    (tmp_path / "solve").mkdir()
    planted = tmp_path / "solve" / "test_planted.py"
    names = [f"test_{'a' * (LONGEST - len('test_'))}", f"test_{'a' * (LONGEST + 1 - len('test_'))}"]
    planted.write_text("".join(f"def {name}():\n    pass\n\n\n" for name in names), encoding="utf-8")
    assert long_names([planted], tmp_path) == {"solve": 1}
