"""The registered seams hold for the installed libraries, whose versions are listed as tested."""

import re
from pathlib import Path

import pytest

from profiler.seams.checked import TESTED, find_moved, problem_of, untested
from profiler.seams.libraries import SEAM_OF, SEAMS
from profiler.seams.seam import Seam

ROOT = Path(__file__).parents[2]

INSTALLED_APART = ("modelscope", "vllm", "verl", "diffusers", "torchvision", "evaluate")
"""In environments of their own: vLLM and verl pin other versions of what the project needs; scripts use the others."""


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.key)
def test_a_seam_holds(seam: Seam) -> None:
    assert problem_of(seam) == ""


def test_every_seam_has_a_key_of_its_own() -> None:
    assert len(SEAM_OF) == len(SEAMS)


def test_nothing_has_moved() -> None:
    assert find_moved(SEAMS) == ()


def test_every_library_has_tested_versions() -> None:
    assert {seam.library for seam in SEAMS} == set(TESTED)


@pytest.mark.parametrize("library", [library for library in TESTED if library not in INSTALLED_APART])
def test_the_pinned_version_is_a_tested_one(library: str) -> None:
    pin = re.search(rf"^{library}==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pin is not None
    assert pin[1] in TESTED[library]


def test_the_installed_versions_are_tested_ones() -> None:
    assert not untested()
