"""The parsed command line of `python -m profiler.report`."""

from collections.abc import Sequence
from dataclasses import dataclass

from profiler.config.command_words import as_pairs
from profiler.config.reading import MAX_INCREASE, TextReader, read_increase, show
from profiler.config.value_grammar import ValueTextError, read_values, unreadable
from profiler.domain.errors import Fault, UsageError, nearest
from profiler.rendering.figures.kinds import STANDARD_KINDS, FigureKind

FIGURES = "figures"

INTO = "into"

KEYS = (FIGURES, MAX_INCREASE, INTO)


@dataclass(frozen=True, kw_only=True)
class Command:
    """A parsed command line; `faults` has what is wrong with its keys."""

    folders: tuple[str, ...]
    """The words that are no `key=value`."""
    kinds: tuple[FigureKind, ...]
    """The formats of the figures."""
    max_increase: float | None
    """By how much a peak may grow between two folders, as a ratio; None to allow any."""
    into: str | None
    """Where the results of several folders are written as one; None if it is not given."""
    faults: tuple[Fault, ...]


def read_command(words: Sequence[str]) -> Command:
    """Parse `words` (argv without the program). If a key is repeated, the last value counts."""
    pairs = as_pairs(words)
    given = dict(word.partition("=")[::2] for word in pairs if _is_key(word))
    faults = [_unknown(key, value) for key, value in given.items() if key not in KEYS]
    kinds = _kinds(given[FIGURES], faults) if FIGURES in given else STANDARD_KINDS
    reader = TextReader({key: text for key, text in given.items() if key == INTO}, paths=(INTO,))
    into = None if reader.value(INTO) is None else reader.text(INTO, "a folder")
    limit, fault = _increase(given.get(MAX_INCREASE))
    return Command(
        folders=tuple(word for word in pairs if not _is_key(word)),
        kinds=tuple(kind for kind in FigureKind if kind in kinds),
        max_increase=limit,
        into=into,
        faults=(*faults, *reader.faults, *([fault] if fault is not None else [])),
    )


def _kinds(text: str, faults: list[Fault]) -> Sequence[FigureKind]:
    allowed = list(map(str, FigureKind))
    try:
        names = read_values(text)
    except ValueTextError as error:
        faults.append(unreadable(FIGURES, text, error))
        return ()
    if wrong := [show(name) for name in names if name not in allowed]:
        problem = f"must be one or several of {', '.join(allowed)}, separated by commas"
        faults.append(Fault(key=FIGURES, found=text, problem=problem, hint=nearest(wrong[0], allowed)))
        return ()
    return [FigureKind(name) for name in names if isinstance(name, str)]


def _increase(text: str | None) -> tuple[float | None, Fault | None]:
    """Return an increase as a ratio, or what is wrong with it; None twice if none is given."""
    if text is None:
        return None, None
    try:
        return read_increase(MAX_INCREASE, text), None
    except UsageError as error:
        return None, error.faults[0]


def _is_key(word: str) -> bool:
    """Whether a word is `key=value`; the name of a folder may contain "=" after a separator."""
    key, equals, _ = word.partition("=")
    return bool(equals) and key.isidentifier()


def _unknown(key: str, value: str) -> Fault:
    return Fault(key=key, found=value, problem=f"is unknown; the keys are {', '.join(KEYS)}", hint=nearest(key, KEYS))
