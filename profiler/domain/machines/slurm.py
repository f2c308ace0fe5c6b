"""Values of Slurm's options, in Slurm's own spelling."""

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

_NAMES = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.,:@+-]{0,199}")
_GPUS = re.compile(r"(?:([A-Za-z][A-Za-z0-9_.-]{0,99}):)?([0-9]{1,4})")
_TIME = re.compile(
    r"(?:(?P<days>[0-9]{1,4})-)?(?P<first>[0-9]{1,6})(?::(?P<second>[0-9]{1,2}))?(?::(?P<third>[0-9]{1,2}))?"
)


class SlurmValue(ABC):
    """A value that is checked before Slurm is asked."""

    @classmethod
    @abstractmethod
    def parse(cls, text: str) -> Self | None:
        """Return the value that `text` is; None if it is not one."""

    @classmethod
    @abstractmethod
    def form(cls) -> str:
        """Return what is allowed."""


class SlurmName(str, SlurmValue):
    """The name of a partition or of an account, or several with commas."""

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the name that `text` is; None if it is not one."""
        return cls(text) if _NAMES.fullmatch(text) else None

    @classmethod
    def form(cls) -> str:
        """Return what is allowed."""
        return "a name that Slurm knows"


@dataclass(frozen=True, kw_only=True)
class SlurmTime(SlurmValue):
    """A time limit."""

    minutes: int

    def __str__(self) -> str:
        return f"{self.minutes // 60:02}:{self.minutes % 60:02}:00"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the time that ``"90"``, ``"90:00"``, ``"1:30:00"`` or ``"1-12:00:00"`` is, in whole minutes."""
        found = _TIME.fullmatch(text)
        if found is None:
            return None
        days, first, second, third = (int(found[name] or 0) for name in ("days", "first", "second", "third"))
        if found["days"] is not None:
            seconds = ((24 * days + first) * 60 + second) * 60 + third
        elif found["third"] is not None:
            seconds = (first * 60 + second) * 60 + third
        else:
            seconds = first * 60 + second
        return cls(minutes=-(-seconds // 60)) if seconds else None

    @classmethod
    def form(cls) -> str:
        """Return what is allowed."""
        return "minutes, hours:minutes:seconds or days-hours:minutes:seconds, and more than 0"


@dataclass(frozen=True, kw_only=True)
class SlurmGpus(SlurmValue):
    """GPUs of one node."""

    kind: str
    """Slurm's name of the card; empty for any."""
    count: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.count}" if self.kind else str(self.count)

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the GPUs that ``"1"`` or ``"h100:1"`` are; None if it is neither."""
        found = _GPUS.fullmatch(text)
        count = int(found[2]) if found else 0
        return cls(kind=found[1] or "", count=count) if found and count else None

    @classmethod
    def form(cls) -> str:
        """Return what is allowed."""
        return "a number of at least 1, or a kind and a number, such as h100:1"
