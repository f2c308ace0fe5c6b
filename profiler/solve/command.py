"""The parsed command line of `solve`: the name of one key or two, and key=value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from profiler.config.command_words import as_pairs
from profiler.config.reading import TextReader
from profiler.domain.errors import Fault, nearest
from profiler.domain.keys import Kind, MemoryOrder
from profiler.domain.trial import TRIAL_KEYS
from profiler.estimate.command import Command as EstimateCommand
from profiler.estimate.command import read_pairs as read_estimate
from profiler.rendering.figures.kinds import FigureKind

CARD = "gpu"
"""The name that asks for the smallest card."""

SOLVABLE = (
    *(key.name for key in TRIAL_KEYS if key.kind is Kind.COUNT and key.memory is MemoryOrder.GROWS),
    CARD,
)
"""Keys with a largest value that fits, and the card."""

MARGIN, CONFIRM, FIGURE = "margin", "confirm", "figure"

_MOST_KEYS = 2
_MOST_FIRST = 200
"""Most values of the first of two keys."""

MAX_MARGIN = 0.9
"""Largest part of a card that can be asked to stay free."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A parsed command line; `faults` has what is wrong with it."""

    keys: tuple[str, ...]
    """The key to find, or two, of which the second is found for each value of the first; empty if none was named."""
    first: tuple[object, ...]
    """Untyped values of the first of two keys; empty to choose them."""
    figure: Path | None
    """File for the figure of the limit line."""
    margin: float
    """Part of the card that has to stay free."""
    confirm: bool
    """Whether the boundary is simulated, on both sides."""
    rest: EstimateCommand
    """Everything else, read as for an estimate."""
    faults: tuple[Fault, ...]


def read_command(words: Sequence[str]) -> Command:
    """Parse `words` (argv without the program)."""
    pairs = as_pairs(words)
    named = [word for word in pairs if all(part.isidentifier() for part in word.split(","))]
    keys = tuple(key for word in named for key in word.split(","))
    own = {
        key: text for key, equals, text in (word.partition("=") for word in pairs) if key in (MARGIN, CONFIRM, FIGURE)
    }
    rest = read_estimate([word for word in pairs if word not in named and word.partition("=")[0] not in own])
    faults = list(rest.faults)
    first: tuple[object, ...] = ()
    if len(keys) == _MOST_KEYS and keys[0] in rest.axes:
        first = tuple(rest.axes[keys[0]])
        rest = replace(rest, axes={key: values for key, values in rest.axes.items() if key != keys[0]})
        if len(first) > _MOST_FIRST:
            problem = f"has {len(first):,} values, and at most {_MOST_FIRST} are tried"
            faults.append(Fault(key=keys[0], found=str(first[0]), problem=problem))
    if not rest.wants_help:
        faults += _key_faults(keys, rest)
    reader = margin_and_confirm(own, paths=(FIGURE,))
    margin, confirm = reader.number(MARGIN, maximum=MAX_MARGIN), reader.flag(CONFIRM)
    figure = None if reader.value(FIGURE) is None else str(reader.value(FIGURE))
    return Command(
        keys=keys,
        first=first,
        figure=None if figure is None else Path(figure),
        margin=margin,
        confirm=confirm,
        rest=rest,
        faults=(*faults, *reader.faults, *_figure_faults(figure, keys)),
    )


def margin_and_confirm(own: Mapping[str, str], *, paths: Sequence[str]) -> TextReader:
    """Return the reader of `own` texts, in which `margin` and `confirm` have a value; `paths` take any text."""
    return TextReader({MARGIN: "0", CONFIRM: "true", **own}, ratios=(MARGIN,), paths=paths)


def _key_faults(names: Sequence[str], rest: EstimateCommand) -> list[Fault]:
    found = ",".join(names) or "none"
    if not 1 <= len(set(names)) == len(names) <= _MOST_KEYS:
        problem = f"name one key to solve for, or two with a comma between them: {', '.join(SOLVABLE)}"
        return [Fault(key="key", found=found, problem=problem)]
    for name in names:
        if name not in SOLVABLE:
            problem = f"has no largest value that fits; name one of {', '.join(SOLVABLE)}"
            return [Fault(key="key", found=name, problem=problem, hint=nearest(name, SOLVABLE))]
    if CARD in names and len(names) > 1:
        return [Fault(key="key", found=found, problem="gpu is solved for by itself; give several cards as gpu=a,b")]
    given = {**rest.keys, **rest.axes}
    return [
        Fault(key=name, found=str(given[name]), problem="is what is solved for; leave its value out")
        for name in names
        if name in given
    ]


def _figure_faults(name: str | None, keys: Sequence[str]) -> list[Fault]:
    if name is None:
        return []
    if len(keys) != _MOST_KEYS:
        return [Fault(key=FIGURE, found=name, problem="draws the limit line of two keys; name two")]
    suffixes = [f".{kind}" for kind in FigureKind]
    if Path(name).suffix not in suffixes:
        return [Fault(key=FIGURE, found=name, problem=f"must be a file that ends with {', '.join(suffixes)}")]
    return []
