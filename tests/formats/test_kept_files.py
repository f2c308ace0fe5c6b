"""Files of public repositories are answered by their facts, or refused by name, and none is answered wrongly."""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from rebuilt import HERE, MODEL, cases, said, write_program, write_script, write_shell, write_unsloth, write_yaml, wrong

FORMATS: dict[str, Callable[[Path, Mapping[str, Any]], str]] = {
    "trl_command_lines": write_shell,
    "python_scripts": write_script,
    "own_yaml": write_yaml,
    "llama_factory": write_yaml,
    "ms_swift": write_program,
    "axolotl": write_yaml,
    "openrlhf": write_program,
    "unsloth_scripts": write_unsloth,
}

HOME = re.compile(r"(?<![\w.$}])/(?:root|home|Users|mnt)/\w")

COUNTS = json.loads((HERE / "counts.json").read_text())
"""How many files of each format are answered, answered after ``model=``, refused, and answered otherwise than they say.

`FILES_KEPT=new python -m pytest tests/formats/test_kept_files.py` writes them again, and
`python -m maintenance.pages.reference_pages` the page that has them.
"""


@pytest.mark.parametrize("name", FORMATS)
def test_there_are_enough_files_of_enough_repositories(name):
    kept = cases(name)
    assert len(kept) >= 15
    assert len({case["repository"] for case in kept}) >= 5
    assert all(case["path"] and case["commit"] for case in kept)


REFUSALS_OF_UNSLOTH = (
    "fp16=true: changes memory in a way that has no formula",
    "times num_processes=1 must be a multiple of the 8 completions per prompt",
    "no bound here",
    "without fast_inference=True is refused by Unsloth",
    "lora_modules_to_save=[embed_tokens,lm_head]: changes memory in a way that has no formula",
)
"""Why scripts of Unsloth are refused: float16, an evaluation that trl refuses, embeddings, what was not read."""


def test_scripts_of_unsloth_have_bounds_or_a_reason(tmp_path):
    for case in cases("unsloth_scripts"):
        answer = said(write_unsloth(tmp_path, case), MODEL)
        if answer.trial is None:
            assert any(reason in error for error in answer.errors for reason in REFUSALS_OF_UNSLOTH), answer.errors
        else:
            assert 0 < answer.bounds["least_bytes"] < answer.bounds["most_bytes"]


@pytest.mark.parametrize("name", FORMATS)
def test_no_file_is_answered_wrongly(name, tmp_path):
    contradicted = {}
    counts: Counter[str] = Counter()
    for number, case in enumerate(cases(name)):
        own = tmp_path / str(number)
        own.mkdir()
        word = FORMATS[name](own, case)
        answer, how = said(word), "answered"
        if answer.trial is None:
            assert all("=" in error and len(error) < 5000 for error in answer.errors[-1:])
            answer, how = said(word, MODEL), "answered with model="
        counts[how if answer.trial is not None else "refused"] += 1
        if answer.trial is None:
            continue
        differs = wrong(case["facts"], answer, with_model=how != "answered")
        counts["wrong"] += bool(differs)
        if differs:
            contradicted[f"{case['repository']} {case['path']}"] = differs
    assert contradicted == {}
    if os.environ.get("FILES_KEPT") == "new":
        COUNTS[name] = dict(sorted(counts.items()))
        (HERE / "counts.json").write_text(json.dumps(COUNTS, indent=1) + "\n")
    assert counts == COUNTS[name]


def test_no_kept_fact_names_a_folder_of_a_person():
    """Only the last part of a path of somebody's machine says anything: a model, a file of rows."""
    named = [path.name for path in sorted(HERE.glob("*.json")) if HOME.search(path.read_text(encoding="utf-8"))]
    assert named == []
    assert HOME.search('"model": "/home/name/Qwen3-8B"') and not HOME.search('"model": "/data/Qwen3-8B"')
