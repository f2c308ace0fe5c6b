"""A rule between the keys of a trial."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from profiler.domain.architecture import Architecture
from profiler.domain.errors import Fault
from profiler.domain.trial import TrialSpec


class Sound(Protocol):
    """Protocol of `FieldReader.sound`: whether none of some keys has a fault."""

    def __call__(self, *keys: str) -> bool:
        """Return whether a rule between `keys` can be checked."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule and the keys that it reads.

    It is skipped where one of them already has a fault, or has no meaning in the recipe of the trial.
    """

    keys: tuple[str, ...]
    check: Callable[[TrialSpec, Architecture | None], Iterator[Fault]]
