"""The parsed command line of `solve`: the name of one key, and key=value."""

from collections.abc import Sequence
from dataclasses import dataclass

from profiler.config.foreign_text import ForeignTextError
from profiler.config.reading import FieldReader
from profiler.domain.errors import Fault, nearest
from profiler.domain.keys import Kind, MemoryOrder
from profiler.domain.trial import TRIAL_KEYS
from profiler.estimate.command import Command as EstimateCommand
from profiler.estimate.command import read_command as read_estimate
from profiler.estimate.command import read_value

CARD = "gpu"
"""The name that asks for the smallest card."""

SOLVABLE = (
    *(key.name for key in TRIAL_KEYS if key.kind is Kind.COUNT and key.memory is MemoryOrder.GROWS),
    CARD,
)
"""Keys with a largest value that fits, and the card."""

MARGIN, CONFIRM = "margin", "confirm"

MAX_MARGIN = 0.9
"""Largest part of a card that can be asked to stay free."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A parsed command line; `faults` has what is wrong with it."""

    key: str
    """The key to find; empty if none was named."""
    margin: float
    """Part of the card that has to stay free."""
    confirm: bool
    """Whether the boundary is simulated, on both sides."""
    rest: EstimateCommand
    """Everything else, read as for an estimate."""
    faults: tuple[Fault, ...]


def read_command(words: Sequence[str]) -> Command:
    """Parse `words` (argv without the program)."""
    names = [word for word in words if word.isidentifier()]
    own = {key: text for key, equals, text in (word.partition("=") for word in words) if key in (MARGIN, CONFIRM)}
    rest = read_estimate([word for word in words if word not in names and word.partition("=")[0] not in own])
    faults = list(rest.faults)
    if not rest.wants_help:
        faults += _key_faults(names, rest)
    reader = FieldReader({MARGIN: margin_value(own.get(MARGIN, "0")), CONFIRM: yaml_value(own.get(CONFIRM, "true"))})
    margin, confirm = reader.number(MARGIN, maximum=MAX_MARGIN), reader.flag(CONFIRM)
    return Command(
        key=names[0] if names else "",
        margin=margin,
        confirm=confirm,
        rest=rest,
        faults=(*faults, *reader.faults),
    )


def margin_value(text: str) -> object:
    """Return ``"5%"`` as 0.05, and any other text as YAML reads it."""
    number = yaml_value(text.removesuffix("%"))
    return number / 100 if text.endswith("%") and isinstance(number, int | float) else number


def yaml_value(text: str) -> object:
    """Return the value of a text; the text itself if it cannot be read, which is then reported as a wrong value."""
    try:
        return read_value(text)
    except ForeignTextError:
        return text


def _key_faults(names: Sequence[str], rest: EstimateCommand) -> list[Fault]:
    if len(names) != 1:
        problem = f"name one key to solve for: {', '.join(SOLVABLE)}"
        return [Fault(key="key", found=" ".join(names) or "none", problem=problem)]
    (name,) = names
    if name not in SOLVABLE:
        problem = f"has no largest value that fits; name one of {', '.join(SOLVABLE)}"
        return [Fault(key="key", found=name, problem=problem, hint=nearest(name, SOLVABLE))]
    given = {**rest.keys, **rest.axes}
    if name in given:
        return [Fault(key=name, found=str(given[name]), problem="is what is solved for; leave its value out")]
    return []
