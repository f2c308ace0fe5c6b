"""One detail of another library: its place, and what is expected of it.

What can be expected of a name of another library. `problem` returns a phrase, empty if the expectation holds.
"""

import dis
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import CodeType
from typing import Any, Protocol


class Expectation(Protocol):
    """A condition on the object that a name refers to."""

    def problem(self, found: Any) -> str:
        """Return what differs, as a phrase after the seam's name."""

    def __str__(self) -> str:
        """Return the condition as a short phrase."""


@dataclass(frozen=True)
class Exists:
    """Any object."""

    def problem(self, _found: Any) -> str:
        """Return an empty string: the lookup itself is the check."""
        return ""

    def __str__(self) -> str:
        return "exists"


@dataclass(frozen=True)
class Equals:
    """A constant."""

    value: Any

    def problem(self, found: Any) -> str:
        """Compare type and value."""
        if type(found) is type(self.value) and found == self.value:
            return ""
        return f"is {found!r}, expected {self.value!r}"

    def __str__(self) -> str:
        return f"= {self.value!r}"


@dataclass(frozen=True, init=False)
class Parameters:
    """A function, a class or an ATen operation whose parameters have these names."""

    names: tuple[str, ...]
    more: bool
    """Whether others may follow."""

    def __init__(self, *names: str, more: bool = False) -> None:
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "more", more)

    def problem(self, found: Any) -> str:
        """Compare the names of the parameters."""
        names = _parameter_names(found)
        if names is None:
            return "has no signature"
        if (names[: len(self.names)] if self.more else names) == self.names:
            return ""
        return f"takes ({', '.join(names)}), expected {self}"

    def __str__(self) -> str:
        return f"({', '.join((*self.names, '...') if self.more else self.names)})"


@dataclass(frozen=True, init=False)
class Uses:
    """A function that uses these names, in this order; ``"a.b"`` is attribute `b` of `a`."""

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)

    def problem(self, found: Any) -> str:
        """Look the names up in the function's code, nested functions included."""
        code = getattr(inspect.unwrap(found), "__code__", None)
        if code is None:
            return "has no Python code"
        if len(self.names) == 1:
            # Quicker than the order of instructions.
            return "" if self.names[0] in _names_in(code) else f"does not use {self.names[0]}"
        used, begin = list(_names_used(code)), 0
        for name in self.names:
            found_at = _find(used, name.split("."), begin)
            if found_at is None:
                return f"does not use {', '.join(self.names)} in this order"
            begin = found_at + 1
        return ""

    def __str__(self) -> str:
        return f"uses {', '.join(self.names)}"


@dataclass(frozen=True)
class Says:
    """A function with this text in one of its messages."""

    text: str

    def problem(self, found: Any) -> str:
        """Look the text up in the constants of the function's code."""
        code = getattr(inspect.unwrap(found), "__code__", None)
        constants = () if code is None else code.co_consts
        if any(isinstance(constant, str) and self.text in constant for constant in constants):
            return ""
        return f"does not say '{self.text}'"

    def __str__(self) -> str:
        return f"says '{self.text}'"


def _parameter_names(found: Any) -> tuple[str, ...] | None:
    schema = getattr(found, "_schema", None)
    if schema is not None:
        return tuple(argument.name for argument in schema.arguments)
    try:
        return tuple(inspect.signature(found).parameters)
    except (TypeError, ValueError):
        return None


def _names_in(code: CodeType) -> set[str]:
    """Return the names of attributes and globals in a function's code and in its nested functions."""
    inner = (_names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(code.co_freevars, *inner)


def _names_used(code: CodeType) -> Iterator[str]:
    """Yield the names that a function's code uses, in order; those of its nested functions follow."""
    yield from (str(step.argval) for step in dis.get_instructions(code) if step.opname.startswith("LOAD_"))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_used(constant)


def _find(used: Sequence[str], wanted: Sequence[str], begin: int) -> int | None:
    """Return the first place from `begin` on where the `wanted` names follow each other."""
    places = range(begin, len(used) - len(wanted) + 1)
    return next((place for place in places if used[place : place + len(wanted)] == wanted), None)


class Absence(StrEnum):
    """Where a name may be missing, so that the project does without it."""

    NEVER = "never"
    OLDER_VERSIONS = "older versions"
    """Below `Seam.since`."""
    SOME_BUILDS = "some builds"
    """Depends on what the library was built with, or on what is installed with it."""


class SeamUser(StrEnum):
    """What relies on a seam."""

    TRAINING = "training"
    SIMULATION = "simulation"
    TRACING = "tracing"
    """Used by the simulation and, on real hardware, by `breakdown=true`."""
    MEASUREMENT = "measurement"
    ESTIMATE = "estimate"
    """Constants that the closed form repeats; no trial runs through them."""
    SCRIPTS = "scripts"
    """Used by `profiler.run` and `VramCallback`: what they recognise the phases of a user's training by, and what they
    replace."""
    COMPARISON = "comparison"
    """Tests that compare a simulated trial with one on the CPU."""


_USER_OF_PATH = (
    ("simulation/device/cpu_choices.py", SeamUser.COMPARISON),
    ("simulation/tracing/", SeamUser.TRACING),
    ("simulation/script/", SeamUser.SCRIPTS),
    ("simulation/", SeamUser.SIMULATION),
    ("training/rollouts/decode_loop.py", SeamUser.SIMULATION),
    ("training/", SeamUser.TRAINING),
    ("scripts/", SeamUser.SCRIPTS),
    ("callback/", SeamUser.SCRIPTS),
    ("measurement/", SeamUser.MEASUREMENT),
    ("analytical/", SeamUser.ESTIMATE),
    ("config/", SeamUser.ESTIMATE),
    ("substitutes/", SeamUser.SCRIPTS),
    ("worker/", SeamUser.SCRIPTS),
    ("emulation/", SeamUser.SCRIPTS),
)
"""The first prefix that fits a file below `profiler/` decides."""


@dataclass(frozen=True, kw_only=True)
class Seam:
    """One name of another library."""

    owner: str
    """Module, and after a colon the path to a class in it: ``"transformers.cache_utils:DynamicLayer"``."""
    name: str
    expected: Expectation
    used_by: tuple[str, ...]
    """Files below `profiler/`."""
    why: str
    since: str
    """First version of the library that has it, or the oldest one that it was looked up in."""
    absent_in: Absence = Absence.NEVER

    @property
    def key(self) -> str:
        """Owner and name."""
        return f"{self.owner}.{self.name}"

    @property
    def library(self) -> str:
        """The package that has it."""
        return self.owner.partition(":")[0].partition(".")[0]

    @property
    def users(self) -> frozenset[SeamUser]:
        """What relies on it."""
        return frozenset(_user_of(path) for path in self.used_by)


def _user_of(path: str) -> SeamUser:
    return next(user for prefix, user in _USER_OF_PATH if path.startswith(prefix))


def seams_of(seams: Sequence[Seam], users: frozenset[SeamUser]) -> tuple[Seam, ...]:
    """Return the seams that any of `users` relies on."""
    return tuple(seam for seam in seams if seam.users & users)
