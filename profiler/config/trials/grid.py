"""A grid of trials: axes times cases over common values, with overrides from the command line."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from profiler.config.options.reading import show, unknown_key
from profiler.domain.errors import Fault, UsageError
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import SPEC_KEYS, TRIAL_KEYS

Point = Mapping[str, object]
"""Untyped keys and values of one trial."""

MAX_POINTS = 100_000
"""Most points of one grid, checked before they are made."""

_REFERENCE = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The points that answer one question."""

    name: str
    question: str
    base: Point
    """Values of the keys that are neither an axis nor in a case."""
    axes: Mapping[str, tuple[object, ...]]
    """Every combination of these values is a point; the first axis turns slowest."""
    cases: tuple[Point, ...]
    """Sets of keys that change together, each once per combination of the axes. Never empty."""


def read_grid(name: str, values: Mapping[str, object]) -> Grid:
    """Return the grid that a composed configuration describes by `question`, `axes`, `cases` and keys of a trial.

    Raises:
        UsageError: The configuration has another form; carries every fault found.
    """
    faults: list[Fault] = []
    axes = _read_axes(values.get("axes"), faults)
    cases = _read_cases(values.get("cases"), faults)
    question = values.get("question")
    if question is not None and not isinstance(question, str):
        faults.append(_form_fault("question", question, "must be a text"))
    for key in [*axes, *dict.fromkeys(key for case in cases for key in case)]:
        if key not in SPEC_KEYS:
            faults.append(unknown_key(key, f"(grid {name})", SPEC_KEYS))
        if key in axes and any(key in case for case in cases):
            faults.append(_form_fault(f"axes.{key}", axes[key], "is an axis and in a case; it can only be one"))
    if faults:
        raise UsageError(faults)
    return Grid(
        name=name,
        question=str(question or ""),
        base={key: values[key] for key in SPEC_KEYS if key in values},
        axes=axes,
        cases=cases or ({},),
    )


def _read_axes(value: object, faults: list[Fault]) -> dict[str, tuple[object, ...]]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        faults.append(_form_fault("axes", value, "must be a mapping of keys to lists of values"))
        return {}
    axes: dict[str, tuple[object, ...]] = {}
    for key, candidates in value.items():
        if isinstance(candidates, list | tuple) and candidates:
            axes[str(key)] = tuple(candidates)
        else:
            faults.append(_form_fault(f"axes.{key}", candidates, "must be a list of at least one value"))
    return axes


def _read_cases(value: object, faults: list[Fault]) -> tuple[Point, ...]:
    if value is None:
        return ()
    if isinstance(value, list | tuple) and all(isinstance(case, Mapping) for case in value):
        return tuple({str(key): item for key, item in case.items()} for case in value)
    faults.append(_form_fault("cases", value, "must be a list of mappings of keys to values"))
    return ()


def _form_fault(key: str, value: object, problem: str) -> Fault:
    return Fault(key=key, found=show(value), problem=problem, hint="The other files in sweeps/grid show the form.")


def refuse_too_many_points(axes: Mapping[str, Sequence[object]], *, cases: int = 1) -> None:
    """Check the number of all combinations before they are made.

    Raises:
        UsageError: There are more than `MAX_POINTS`, or none because an axis has no values.
    """
    empty = [key for key, values in axes.items() if not values]
    if empty:
        problem = "has no values, so that there would be no trial"
        raise UsageError([Fault(key=key, found="(no values)", problem=problem) for key in empty])
    count = prod(len(values) for values in axes.values()) * cases
    if count > MAX_POINTS:
        lists = " x ".join([f"{len(values)} {key}" for key, values in axes.items()] + [f"{cases} cases"] * (cases > 1))
        problem = f"{lists} are more points than the {MAX_POINTS:,} of one grid"
        raise UsageError([Fault(key="points", found=f"{count:,}", problem=problem)])


def expand(grid: Grid, overrides: Mapping[str, Sequence[object]]) -> list[Point]:
    """Return the points of `grid` in order: axes outermost, then overrides of other keys, then cases.

    An override replaces its key at every point, whether the key is in the base, an axis or a case. Points that become
    equal are returned once. Points that differ but mean the same trial are all returned; `parse_points` joins them.

    A value ``${key}`` is the value of that key at the same point. A key that the recipe of a point does not have is
    left out of it, unless the user gave it.

    Raises:
        UsageError: There are too many points or none, or a reference leads nowhere.
    """
    axes: dict[str, Sequence[object]] = {**grid.axes, **overrides}
    refuse_too_many_points(axes, cases=len(grid.cases))
    cases = [{key: value for key, value in case.items() if key not in overrides} for case in grid.cases]
    points: list[Point] = []
    for combination in product(*axes.values()):
        chosen = dict(zip(axes, combination, strict=True))
        points.extend(_dereferenced({**grid.base, **chosen, **case}) for case in cases)
    return _each_once(_of_its_recipe(point, given=overrides) for point in points)


def _of_its_recipe(point: Point, *, given: Collection[str]) -> Point:
    if point.get("recipe") not in list(Recipe):
        return point
    other = [key.name for key in TRIAL_KEYS if point["recipe"] not in key.recipes and key.name not in given]
    return {key: value for key, value in point.items() if key not in other}


def _dereferenced(point: Point) -> Point:
    return {key: _follow(point, value, seen=(key,)) for key, value in point.items()}


def _follow(point: Point, value: object, *, seen: tuple[str, ...]) -> object:
    match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    target = match.group(1)
    if target not in point or target in seen:
        reason = "refers to itself" if target in seen else "refers to no key of the trial"
        raise UsageError([Fault(key=seen[0], found=show(value), problem=reason)])
    return _follow(point, point[target], seen=(*seen, target))


def _each_once(points: Iterable[Point]) -> list[Point]:
    kept: list[Point] = []
    seen: set[str] = set()
    for point in points:
        # Values may be lists, which have no hash; different values have different texts.
        text = repr(sorted(point.items()))
        if text not in seen:
            seen.add(text)
            kept.append(point)
    return kept
