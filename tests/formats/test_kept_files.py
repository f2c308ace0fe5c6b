"""Files of public repositories are answered by their facts, or refused by name, and none is answered wrongly."""

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from rebuilt import Said, cases, said, write_script, write_shell, write_yaml, wrong

FORMATS: dict[str, Callable[[Path, Mapping[str, Any]], str]] = {
    "trl_command_lines": write_shell,
    "python_scripts": write_script,
    "own_yaml": write_yaml,
}

COUNTS = {
    "trl_command_lines": (0, 0),
    "python_scripts": (0, 0),
    "own_yaml": (0, 0),
}
"""How many files are answered, and how many refused. `docs/files_you_can_bring.md` has the same numbers."""


def answers(name: str, folder: Path) -> list[tuple[dict[str, Any], Said]]:
    found = []
    for number, case in enumerate(cases(name)):
        own = folder / str(number)
        own.mkdir()
        found.append((case, said(FORMATS[name](own, case))))
    return found


@pytest.mark.parametrize("name", FORMATS)
def test_there_are_enough_files_of_enough_repositories(name):
    kept = cases(name)
    assert len(kept) >= 15
    assert len({case["repository"] for case in kept}) >= 5
    assert all(case["path"] and case["commit"] for case in kept)


@pytest.mark.parametrize("name", FORMATS)
def test_no_file_is_answered_wrongly(name, tmp_path):
    contradicted = {}
    counts: Counter[bool] = Counter()
    for case, answer in answers(name, tmp_path):
        counts[answer.trial is not None] += 1
        if answer.trial is None:
            assert answer.errors
            assert all(error.count("=") and len(error) < 5000 for error in answer.errors[-1:])
        elif wrong(case["facts"], answer):
            contradicted[f"{case['repository']} {case['path']}"] = wrong(case["facts"], answer)
    assert contradicted == {}
    assert (counts[True], counts[False]) == COUNTS[name]
