"""The command line of a sweep, split into flags, the grid, keys that become axes, and overrides for Hydra."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString, RangeSweep
from hydra.errors import HydraException

from profiler.config.options.command_words import HELP_FLAGS, as_pairs
from profiler.config.options.option import INCREASE, MAX_INCREASE
from profiler.config.options.reading import TextReader, show, unknown_key
from profiler.config.options.run_options import PATH_OPTIONS, RUN_KEYS
from profiler.config.options.value_grammar import CallError, ValueTextError, read_path, read_values, unreadable, written
from profiler.config.trials.grid import MAX_POINTS
from profiler.domain.errors import Fault, nearest
from profiler.domain.trials.trial import SPEC_KEYS

GRID = "grid"

PYTHON = "python"
"""The run option that names the Python of the trials; several values are compared."""

GRID_FILE_KEYS = ("question", "axes", "cases")
"""Keys that only a grid file has."""

ALL_KEYS = (*SPEC_KEYS, *RUN_KEYS)

_FOLDER_FLAGS = ("--config-dir", "-cd")

_IGNORED_FLAGS = ("--multirun", "-m", "--run", "-r")
"""Ignored: a sweep has many trials with or without them."""

_SHELLS = ("bash", "fish", "zsh")

_COMPLETION_FLAGS = ("--shell-completion", "-sc")

_COMPLETION_WORDS = tuple(f"{what}={shell}" for what in ("install", "uninstall", "query") for shell in _SHELLS)

_PACKAGE_FLAGS = ("--package", "-p")
"""Flags of which any word follows."""

_CFG_WORDS = ("job", "hydra", "all")
_INFO_WORDS = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")

_SHOW_FLAGS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(HELP_FLAGS, ()),
    "--hydra-help": (),
    "--version": (),
    "--resolve": (),
    **dict.fromkeys(_COMPLETION_FLAGS, _COMPLETION_WORDS),
    **dict.fromkeys(("--cfg", "-c"), _CFG_WORDS),
    **dict.fromkeys(("--info", "-i"), _INFO_WORDS),
    **dict.fromkeys(_PACKAGE_FLAGS, ("PACKAGE",)),
}
"""Flags with which Hydra prints something instead of running, with the words of which one follows."""

_WITHOUT_WORD = ("--info", "-i")
"""Flags whose word may be left out."""

_UNREADABLE = (HydraException, ValueError, ArithmeticError, RecursionError)
"""What Hydra's parser raises at a wrong text."""

_MOST_CHARACTERS = 20_000
"""Longest override that Hydra's parser reads, at some 10,000 characters per second."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A parsed command line. Its wrong parts are in `faults`, the other fields leave them out."""

    grids: tuple[str, ...]
    """Named grids; exactly one is valid."""
    axes: Mapping[str, tuple[object, ...]]
    """Keys of the trial with the values that the user gave, in order."""
    settings: tuple[str, ...]
    """Overrides of run options and of Hydra's own keys, for Hydra."""
    pythons: tuple[str, ...]
    """Environments to compare, if `python` has several values."""
    max_increase: float | None
    """By how much a peak may grow between them, as a ratio; None to allow any."""
    show_flags: tuple[str, ...]
    config_dir: str | None
    faults: tuple[Fault, ...]


def for_each_python(command: Command) -> tuple[Command, ...]:
    """Return one command per environment of `command`; the command itself if it compares none."""
    return tuple(
        replace(command, settings=(*command.settings, f"{PYTHON}={written(python)}")) for python in command.pythons
    ) or (command,)


def pairs_of(words: Sequence[str]) -> tuple[str, ...]:
    """Return `words` with the keys of a sweep as `key=value`; flags of Hydra stay as they stand."""
    return as_pairs(words, flags=(*_FOLDER_FLAGS, *_IGNORED_FLAGS, *_SHOW_FLAGS))


def read_command(words: Sequence[str]) -> Command:
    """Parse `words` (argv without the program)."""
    flags = _split_flags(pairs_of(words))
    reading = _OverrideReading()
    for text in flags.overrides:
        reading.read(text)
    reading.check()
    return Command(
        grids=tuple(reading.grids),
        axes=reading.axes,
        settings=tuple(reading.settings),
        pythons=reading.pythons,
        max_increase=reading.max_increase,
        show_flags=tuple(flags.shown),
        config_dir=flags.config_dir,
        faults=(*flags.faults, *reading.faults),
    )


class _Flags:
    def __init__(self) -> None:
        self.shown: list[str] = []
        self.overrides: list[str] = []
        self.config_dir: str | None = None
        self.faults: list[Fault] = []


def _split_flags(words: Sequence[str]) -> _Flags:
    flags = _Flags()
    left = list(words)
    while left:
        word = left.pop(0)
        name, has_value, value = word.partition("=")
        if not word.startswith("-"):
            flags.overrides.append(word)
        elif name in _FOLDER_FLAGS:
            if not has_value and left:
                value = left.pop(0)
            flags.config_dir = value
        elif name in _SHOW_FLAGS:
            if not has_value and left and _belongs_to_flag(name, left[0]):
                value = left.pop(0)
            fault = _flag_fault(name, value)
            flags.shown.extend([name, value] if value else [name])
            if fault is not None:
                flags.faults.append(fault)
        elif word not in _IGNORED_FLAGS:
            flags.faults.append(_unknown_flag(word))
    return flags


def _belongs_to_flag(flag: str, word: str) -> bool:
    """Return whether the word after a flag is its value, and not an override."""
    if flag in _COMPLETION_FLAGS:
        return word.partition("=")[0] in ("install", "uninstall", "query")
    return bool(_SHOW_FLAGS[flag]) and "=" not in word and not word.startswith("-")


def _flag_fault(flag: str, value: str) -> Fault | None:
    """Return what is wrong with the word after a flag, if anything."""
    allowed = _SHOW_FLAGS[flag]
    is_allowed = value in allowed or flag in _PACKAGE_FLAGS
    if (value and is_allowed) or (not value and (not allowed or flag in _WITHOUT_WORD)):
        return None
    problem = f"must be followed by one of {', '.join(allowed)}" if allowed else "takes no value"
    return Fault(key=flag, found=value or "(nothing)", problem=problem, hint=nearest(value, allowed) if value else "")


def _unknown_flag(word: str) -> Fault:
    known = [name for name in (*_SHOW_FLAGS, *_FOLDER_FLAGS) if name.startswith("--")]
    return Fault(
        key="flag", found=word, problem=f"is not known; the flags are {', '.join(known)}", hint=nearest(word, known)
    )


class _OverrideReading:
    """Collects overrides one after the other. The last override of a key wins, as in Hydra."""

    def __init__(self) -> None:
        self.grids: list[str] = []
        self.axes: dict[str, tuple[object, ...]] = {}
        self.settings: list[str] = []
        self.pythons: tuple[str, ...] = ()
        self.max_increase: float | None = None
        self.faults: list[Fault] = []
        self._parser = OverridesParser.create()

    def read(self, text: str) -> None:
        """Collect one override."""
        name, equals, value = text.partition("=")
        try:
            override = self._parsed(f"{name}{equals}")
        except _UNREADABLE:
            self.faults.append(_too_long(text) if len(text) > _MOST_CHARACTERS else _not_a_pair(text))
            return
        key = override.key_or_group
        if override.package is not None:
            self.faults.append(_has_package(text))
        elif override.is_delete():
            self.faults.append(_cannot_remove(text))
        elif override.is_hydra_override():
            self.settings.append(text)
        elif key == MAX_INCREASE:
            self._read_increase(value)
        elif key in PATH_OPTIONS and key != PYTHON:
            self.settings.append(f"{key}={written(read_path(value))}")
        else:
            self._read_values(key, text, value)

    def _parsed(self, text: str) -> Override:
        if len(text) > _MOST_CHARACTERS:
            raise ValueError(text)
        return self._parser.parse_override(text)

    def _read_values(self, key: str, text: str, value: str) -> None:
        """Collect an override whose values are ours to read; only a call of a function is Hydra's."""
        try:
            self._take(key, read_values(value))
        except CallError:
            self._read_call(key, text)
        except ValueTextError as error:
            self.faults.append(unreadable(key, value, error))

    def _read_call(self, key: str, text: str) -> None:
        if len(text) > _MOST_CHARACTERS:
            self.faults.append(_too_long(text))
            return
        try:
            values = _values(self._parser.parse_override(text))
        except _ManyValuesError:
            self.faults.append(_too_many(text))
        except _UNREADABLE:
            self.faults.append(_unreadable(text))
        else:
            self._take(key, values)

    def _take(self, key: str, values: tuple[object, ...]) -> None:
        if key == GRID:
            self.grids.extend(_flat_names(values))
        elif key in SPEC_KEYS:
            if len(values) > MAX_POINTS:
                found = ",".join(map(show, values))
                self.faults.append(_too_many(f"{key}={found}"))
            self.axes[key] = values[:MAX_POINTS]
        elif key == PYTHON and len(values) > 1:
            self.pythons = tuple(map(show, values))
        elif key in RUN_KEYS:
            self._read_setting(key, values)
        elif key.partition(".")[0] in GRID_FILE_KEYS:
            self.faults.append(_belongs_to_grid_file(key, values))
        else:
            self.faults.append(unknown_key(key, _one_or_all(values), (GRID, MAX_INCREASE, *ALL_KEYS)))

    def check(self) -> None:
        """Check keys that depend on each other, after the last override."""
        if repeated := [python for python in dict.fromkeys(self.pythons) if self.pythons.count(python) > 1]:
            found = ",".join(self.pythons)
            self.faults.append(Fault(key=PYTHON, found=found, problem=f"names {repeated[0]} twice"))
        if self.max_increase is not None and not self.pythons:
            problem = "compares environments, and none are named"
            hint = f"Add {PYTHON}=ENVIRONMENT,ENVIRONMENT."
            self.faults.append(Fault(key=MAX_INCREASE, found=f"{self.max_increase:g}", problem=problem, hint=hint))

    def _read_increase(self, text: str) -> None:
        reader = TextReader({MAX_INCREASE: text}, {MAX_INCREASE: INCREASE.read_text})
        increase = INCREASE.read(reader, MAX_INCREASE)
        self.max_increase = increase if reader.sound(MAX_INCREASE) else None
        self.faults.extend(reader.faults)

    def _read_setting(self, key: str, values: tuple[object, ...]) -> None:
        if len(values) == 1:
            self.settings.append(f"{key}={written(values[0])}")
            if key == PYTHON:
                self.pythons = ()
            return
        found = ",".join(show(value) for value in values)
        self.faults.append(
            Fault(key=key, found=found, problem="takes one value, because only keys of a trial can have several")
        )


def _values(override: Override) -> tuple[object, ...]:
    """Return the values of an override: one, or those of a list of choices or a range.

    Raises:
        ValueError: It is a continuous interval or a glob, which have no list of values.
        _ManyValuesError: It is a range of more than `MAX_POINTS` values.
    """
    if not override.is_sweep_override():
        return (_plain(override.value()),)
    value = override.value()
    if isinstance(value, RangeSweep) and _length(value) > MAX_POINTS:
        raise _ManyValuesError
    try:
        return tuple(_plain(value) for value in override.sweep_iterator())
    except HydraException as error:
        raise ValueError(override.input_line) from error


class _ManyValuesError(Exception):
    """A range has more values than a grid may have points."""


def _length(found: RangeSweep) -> float:
    """Return about how many values a range has, without making them.

    Raises:
        ValueError: A number of the range is none, or its step is 0.
    """
    start, stop, step = (float(number) for number in (found.start, found.stop, found.step))
    if math.isnan(start) or math.isnan(stop) or math.isnan(step) or step == 0 or math.isinf(start):
        raise ValueError(str(found))
    return (stop - start) / step


def _plain(value: object) -> object:
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def _flat_names(values: tuple[object, ...]) -> list[str]:
    return [show(name) for value in values for name in (value if isinstance(value, list) else [value])]


def _one_or_all(values: tuple[object, ...]) -> object:
    return values[0] if len(values) == 1 else list(values)


def _has_package(text: str) -> Fault:
    return Fault(
        key="argument", found=text, problem="has a package (@), which a sweep does not use", hint="Leave it out."
    )


def _too_long(text: str) -> Fault:
    key, _, value = text.partition("=")
    problem = f"has {len(value):,} characters, and at most {_MOST_CHARACTERS:,} are allowed"
    return Fault(key=key.lstrip("+"), found=value, problem=problem, hint="Put long lists of values into a grid file.")


def _too_many(text: str) -> Fault:
    key, _, value = text.partition("=")
    return Fault(
        key=key.lstrip("+"), found=value, problem=f"has more values than the {MAX_POINTS:,} points of one grid"
    )


def _not_a_pair(text: str) -> Fault:
    hint = f"If it names a grid, write +grid={text}." if "=" not in text else ""
    return Fault(key="argument", found=text, problem="is not of the form key=value", hint=hint)


def _unreadable(text: str) -> Fault:
    key, _, value = text.partition("=")
    problem = "cannot be read as a value, because Hydra cannot evaluate its call of a function"
    return Fault(key=key.lstrip("+"), found=value, problem=problem, hint=f"Quote what is a text: '{key}=\"...\"'.")


def _cannot_remove(text: str) -> Fault:
    return Fault(
        key="argument", found=text, problem="would remove a key, but every key is needed", hint="Set it instead."
    )


def _belongs_to_grid_file(key: str, values: tuple[object, ...]) -> Fault:
    return Fault(
        key=key,
        found=show(_one_or_all(values)),
        problem="belongs to a grid file",
        hint="Give a key several values to sweep over them: model=qwen2.5-0.5b,qwen2.5-3b.",
    )
