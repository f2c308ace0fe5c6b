"""Odd values at each place of a valid file, as data: what a damaged or foreign file of the same format may have."""

import copy
import pickle
from collections.abc import Iterator
from typing import Any

DEEP = "deep deep deep"
"""In a pickle, replaced by a million tuples inside each other."""

ODD: tuple[Any, ...] = (
    None, True, -1, 2**70, 10**400, float("inf"), float("nan"), 0.5, "", "x", "\x00\x1b[31m", "\ud800", "x" * 100_000,
    [], [None], {}, {"a": {"b": []}}, "1:30", "010", "10" * 200,
)  # fmt: skip


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of each value in a container, itself containers; of a list only its first part."""
    children: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        children = list(value.items())
    elif isinstance(value, list) and value:
        children = [(0, value[0])]
    for key, child in children:
        yield (*place, key)
        yield from places(child, (*place, key))


def changed(value: Any, place: tuple[Any, ...], odd: Any) -> Any:
    """A copy of `value` with another one at a place."""
    found = copy.deepcopy(value)
    holder = found
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = odd
    return found


def without(value: Any, place: tuple[Any, ...]) -> Any:
    """A copy of `value` without a place."""
    found = copy.deepcopy(value)
    holder = found
    for key in place[:-1]:
        holder = holder[key]
    del holder[place[-1]]
    return found


def variants(value: Any, *, each: int = 2) -> Iterator[tuple[str, Any]]:
    """Yield `value` with `each` odd values at every place, in turn, and without it."""
    number = 0
    for place in places(value):
        for _ in range(each):
            yield f"{place} = {ODD[number % len(ODD)]!r:.40}", changed(value, place, ODD[number % len(ODD)])
            number += 7  # no common divisor with the number of odd values
        yield f"without {place}", without(value, place)


def deep_pickles(value: Any, *, depth: int = 1_000_000) -> Iterator[tuple[str, bytes]]:
    """Yield the pickle of `value` with tuples inside each other at every place."""
    mark = pickle.dumps(DEEP, protocol=3)[2:-1].removesuffix(b"q\x00")
    for place in places(value):
        file = pickle.dumps(changed(value, place, DEEP), protocol=3)
        assert mark in file
        yield f"{place} = {depth:,} tuples", file.replace(mark, b")" + b"\x85" * depth, 1)


def damaged(file: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield a file that was cut, or has other bytes, at twelve places."""
    for part in range(12):
        at = len(file) * part // 12
        yield f"cut at {at}", file[:at]
        yield f"zeros from {at}", file[:at] + bytes(64) + file[at + 64 :]
        yield f"ones from {at}", file[:at] + b"\xff" * 8 + file[at + 8 :]
