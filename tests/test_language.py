"""Retired names and set phrases do not come back. `python tests/test_language.py PATH ...` lists where they are."""

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

RETIRED_NAMES = (
    r"(^|_)told($|_)",
    r"stand_?ins?($|_)|standing_in|standin",
    r"(^|_)ledgers?($|_)",
    r"known_values?",
    r"(^|_)op_plans?",
    r"(^|_)elsewhere($|_)",
    r"(^|_)standing($|_)",
    r"(^|_)moments?($|_)",
    r"(^|_)strand(s|ed|ing)($|_)",
    r"(^|_)rooms?($|_)|headless_room",
    r"(^|_)rulers?($|_)",
    r"(^|_)rivals?($|_)",
    r"(^|_)drawn($|_)",
    r"(^|_)frontiers?($|_)",
    r"(^|_)way_outs?($|_)",
    r"(^|_)complain(s|ts?)?($|_)",
    r"^_?press$",
    r"(^|_)patience($|_)",
    r"^_?conditions?$",
    r"order_of_learning|orderoflearning",
    r"needs_no_more|needsnomore",
    r"(^|_)truths?($|_)",
    r"passing_blocks?",
    r"(^|_)legs?($|_)",
    r"(^|_)borders?($|_)",
    r"fold_?outs?",
    r"decode_history|decodehistory",
    r"^_?promises?$",
)
"""Of identifiers, in lower case and with `_` between words."""

_COUNTED = (
    "axis|block|card|cell|completion|core|fault|figure|file|function|GPU|grid|group|key|kind|label|layer|line|method|"
    "model|panel|phase|point|process|prompt|rank|record|row|section|size|spec|step|sweep|table|test|thread|token|trial|"
    "value|worker"
)

RETIRED_PHRASES = (
    r"\b(told|tells?|telling) over\b|\btold (rollouts?|wrongly|steps?)\b|\bas told\b",
    r"\bstand(s|ing)?[- ]in(s)?\b",
    r"\bledgers?\b|\bkeeps? books\b|\bthe books\b|\bbooks on\b",
    r"\b(known|stated) values?\b",
    r"\bop plans\b",
    r"\bstanding memory\b",
    r"\bstranded\b",
    r"\brulers?\b",
    r"\brivals?\b",
    r"\bdrawn (trials?|rows?|points?|by a seed)\b",
    r"\bfrontiers?\b",
    r"\bways? out\b",
    r"\bcomplain(s|ts?|ed)?\b",
    r"\bpatience\b",
    r"\border of learning\b",
    r"\bneeds? no more (memory|than)\b",
    r"\bpassing blocks?\b",
    r"\bfold-?outs?\b",
    r"\bbefell\b",
    r"\bbeside\b",
    rf"\b({_COUNTED}) an? ({_COUNTED})\b",
    r"\bis no (key|option|number|name)\b",
    r"\b(is|are|was|were) not to be had\b|\b(can|could|cannot) (not )?be had\b",
    r"\bwho(ever)? fails\b",
)
"""Of comments, docstrings, messages and documents."""

_NOT_OURS = ("results/", "tests/test_language.py", "profiler/published/", "notebooks/")

_EXCEPTIONS = (
    # Words that code needs: what CSS, matplotlib, Adam and mixtures of experts call theirs.
    (r"\.(py|css|html|js)$", r"border[-:_(]|border(color|radius|pad|axespad)|\bframeon\b"),
    (r"^profiler/emulation/", r"threading\.Condition"),
    (r"", r"\b(first|second|Adam's|both) moments?\b|\bmoments? of Adam\b"),
)


def _words(name: str) -> str:
    """An identifier in lower case, with `_` between its words."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _names_and_texts(source: str) -> Iterator[tuple[int, str, bool]]:
    """Line, text, and whether it is an identifier, of each token that carries words."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            yield token.start[0], token.string, True
        elif token.type in (tokenize.STRING, tokenize.COMMENT):
            for offset, line in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, line, False


def _excepted(path: str, line: str) -> bool:
    return any(re.search(where, path) and re.search(what, line) for where, what in _EXCEPTIONS)


def retired(path: Path) -> list[str]:
    """Each retired name or phrase in a file, with its place."""
    name = str(path.relative_to(ROOT))
    source = path.read_text()
    lines = source.splitlines()
    if path.suffix == ".py":
        tokens = list(_names_and_texts(source))
    else:
        tokens = [(number, line, False) for number, line in enumerate(lines, start=1)]
    found = []
    for number, text, is_name in tokens:
        for phrase in _retired_in(text, is_name):
            if not _excepted(name, lines[number - 1]):
                found.append(f"{name}:{number}: {phrase!r}")
    return found


@cache
def _retired_in(text: str, is_name: bool) -> tuple[str, ...]:
    """Each retired name in a name, or phrase in a text; most names are in many places."""
    patterns, wanted = (RETIRED_NAMES, _words(text)) if is_name else (RETIRED_PHRASES, text)
    if not _any_of(patterns).search(wanted):
        return ()
    found = (re.search(pattern, wanted, re.IGNORECASE) for pattern in patterns)
    return tuple(match.group(0) for match in found if match)


@cache
def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{each})" for each in patterns), re.IGNORECASE)


def _files(under: Path) -> Iterator[Path]:
    candidates = [under] if under.is_file() else sorted(under.rglob("*"))
    for path in candidates:
        relative = str(path.relative_to(ROOT))
        is_text = path.suffix in (".py", ".md", ".yaml", ".toml", ".sh", ".css", ".js") and path.is_file()
        if is_text and not relative.startswith(_NOT_OURS) and "/." not in f"/{relative}":
            yield path


@pytest.mark.parametrize("folder", ["profiler", "maintenance", "tests", "docs", "scripts", "sweeps", "README.md"])
def test_no_retired_name_or_phrase_is_left(folder):
    assert [line for path in _files(ROOT / folder) for line in retired(path)] == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("told_rollout = 1\n", 1),
        ("class StandIn: ...\n", 1),
        ("x = 1  # one line a trial\n", 1),
        ("def f(): 'A way out beside it.'\n", 2),
        ("tensor = pad(padding_side='left')  # Adam's second moment\n", 0),
    ],
)
def test_the_check_finds_what_it_is_for(tmp_path, monkeypatch, source, count):
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    path = tmp_path / "one.py"
    path.write_text(source)
    assert len(retired(path)) == count


if __name__ == "__main__":
    for argument in sys.argv[1:] or ["."]:
        for each in _files((ROOT / argument).resolve()):
            print(*retired(each), sep="\n", end="\n" if retired(each) else "")
