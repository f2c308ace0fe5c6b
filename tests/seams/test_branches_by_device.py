"""Every place where trl, peft, accelerate or transformers asks for the device or for Triton is known."""

import csv
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from branches_by_device import LIBRARIES, places

TAKEN = {
    "card": "the simulation takes the branch of a card",
    "equal": "both branches allocate the same on the card",
    "unreached": "no simulated program gets there",
    "left": "the simulation takes another branch than a card",
}
with (Path(__file__).parent / "branches_by_device.csv").open(newline="") as file:
    ROWS = list(csv.DictReader(file))


def row_of(place):
    """Return the first row that fits."""
    return next((row for row in ROWS if fnmatchcase(place, row["places"])), None)


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_place_that_asks_is_known(library):
    found = places(library)
    assert len(found) > 20
    assert [f"{place}: {code}" for place, code in found.items() if row_of(place) is None] == []


def test_every_row_is_needed():
    """A row that fits no place is of a version that is gone, or stands after one that takes its places."""
    found = [place for library in LIBRARIES for place in places(library)]
    used = {row["places"] for place in found if (row := row_of(place)) is not None}
    assert [row["places"] for row in ROWS if row["places"] not in used] == []


def test_each_row_says_what_is_taken_and_why():
    assert {row["taken"] for row in ROWS} == set(TAKEN)
    assert all(row["why"] for row in ROWS)
