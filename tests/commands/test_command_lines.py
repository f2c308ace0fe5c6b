"""Command lines have the answers, help texts and completions that are kept; each difference is meant, or a fault."""

import json

import pytest
from command_lines import COMPLETED, HELP, KEPT, OWN, answer, completed, help_of, lines

from profiler.console import COMMANDS

SAID = json.loads(KEPT.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", OWN)
def test_lines_are_answered_as_they_were(name, monkeypatch):
    monkeypatch.chdir(KEPT.parent)
    found = {line: answer(line) for line in lines() if line.split()[0] == name}
    kept = {line: said for line, said in SAID["lines"].items() if line.split()[0] == name}
    assert found.keys() == kept.keys()
    assert {line: (kept[line], said) for line, said in found.items() if said != kept[line]} == {}


def test_many_lines_are_kept():
    assert len(SAID["lines"]) >= 1900


@pytest.mark.parametrize("name", COMMANDS)
def test_help_texts_are_as_they_were(name):
    assert help_of(name) == (HELP / f"{name}.txt").read_text(encoding="utf-8")


def test_completion_offers_what_it_offered(monkeypatch):
    monkeypatch.setenv("COMP_LINE", "")
    monkeypatch.setenv("COMP_POINT", "")
    assert {line: completed(line) for line in COMPLETED} == SAID["completed"]
