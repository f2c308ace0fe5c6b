"""Sections of bullets in docstrings, from which the page of limits is made."""

import pytest

from maintenance.pages.docstrings import limits_of, opening, sections

TEXT = """A package.

More words.

Not known:
    - what is *here*, on
      two lines
    - A second.

Refused:
    - Everything.
"""


def test_the_opening_is_what_comes_before_the_first_section():
    assert opening(TEXT) == "A package.\n\nMore words."


def test_each_section_has_its_bullets_on_one_line():
    assert sections(TEXT) == {
        "Not known": ("What is *here*, on two lines", "A second."),
        "Refused": ("Everything.",),
    }


@pytest.mark.parametrize("text", ["", "A package.", "A package.\n\nArgs:\n    name: A name.\n"])
def test_a_docstring_without_bullets_has_no_section(text):
    assert sections(text) == {}
    assert opening(text) == text


@pytest.mark.parametrize(
    ("package", "count"),
    [
        ("allocator", 6),
        ("cluster", 9),
        ("config", 13),
        ("emulation", 22),
        ("scripts", 26),
        ("simulation", 7),
        ("substitutes", 13),
    ],
)
def test_no_limit_is_lost(package, count):
    assert sum(map(len, limits_of(package).values())) >= count
