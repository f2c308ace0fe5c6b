"""Sweeps on several machines: engines, shards, Slurm's options, addresses of results, and their state."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self


class Scheduler(StrEnum):
    """Values of the run option `engine`."""

    LOCAL = "local"
    """Processes of this machine."""
    RAY = "ray"
    """Actors of a Ray cluster, one per slot."""
    SLURM = "slurm"
    """Jobs of a Slurm cluster, one per slot."""


MAX_SHARDS = 1_000_000

_FORM = re.compile("([0-9]{1,7})/([0-9]{1,7})")


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Shard `number` of `count`, counted from 1."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def shard_of(text: str) -> Shard | None:
    """Return the shard that ``"2/8"`` names; None if it names none."""
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    shard = Shard(number=int(found[1]), count=int(found[2]))
    return shard if 1 <= shard.number <= shard.count <= MAX_SHARDS else None


_MARK = "://"


class Scheme(StrEnum):
    """Kinds of shared stores."""

    S3 = "s3"
    GS = "gs"
    FILE = "file"
    """A folder that every machine has mounted."""


@dataclass(frozen=True, kw_only=True)
class Address:
    """A place in a shared store."""

    scheme: Scheme
    path: str
    """``bucket/path``, or the absolute path of a folder; without a slash at its end."""

    def __str__(self) -> str:
        return f"{self.scheme}{_MARK}{self.path}"

    def __truediv__(self, name: str) -> "Address":
        return Address(scheme=self.scheme, path=f"{self.path}/{name}")

    @property
    def name(self) -> str:
        """Its last part."""
        return self.path.rpartition("/")[2]


def is_address(text: str) -> bool:
    """Return whether `text` is meant as an address and not as a path."""
    return _MARK in text


def address_of(text: str) -> Address | None:
    """Return the address that `text` is; None if it is not one."""
    scheme, _, place = text.partition(_MARK)
    path = place.rstrip("/")
    if scheme not in list(Scheme) or not path or any(part in ("", ".", "..") for part in path.lstrip("/").split("/")):
        return None
    if path.startswith("/") != (scheme == Scheme.FILE):
        return None
    return Address(scheme=Scheme(scheme), path=path)


ADDRESS_FORMS = "s3://bucket/path, gs://bucket/path or file:///folder"


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


@dataclass(frozen=True, kw_only=True)
class Machines:
    """The machines of a sweep, as the engine that places its trials sees them."""

    nodes: int = 1
    nodes_busy: int | None = None
    """Those that run a trial; None if unknown."""
    gpus: int | None = None
    """GPUs of these nodes that the sweep may use; None if unknown."""
    gpus_busy: int | None = None
    """None to count those of the running trials."""


THIS_MACHINE = "this machine"
"""The host of trials that another sweep on the same machine runs."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who holds the claim on a trial."""

    generation: int
    """How many claims on the trial there have been, one after the other ran out."""
    host: str
    """Its machine: `THIS_MACHINE`, or an empty text where it is not known."""


@dataclass(frozen=True, kw_only=True)
class OtherMachines:
    """What other sweeps do with the trials of a store that they share, as a rule on other machines."""

    done: frozenset[str] = frozenset()
    """Trials that they have stored since this sweep began."""
    running: Mapping[str, str] = field(default_factory=dict)
    """The hosts of the trials that they run, by trial id: `THIS_MACHINE`, or an empty text where it is not known."""
    lost: int = 0
    """Claims that ran out, because nobody renewed them."""
    repeated: int = 0
    """Trials that were taken over from a machine that had ended."""


@dataclass(frozen=True, kw_only=True)
class Money:
    """An amount in some currency; the currency may be unknown."""

    amount: float
    currency: str = ""

    def __str__(self) -> str:
        return f"{self.amount:.2f} {self.currency}".strip()


@dataclass(frozen=True, kw_only=True)
class SweepState:
    """How far a sweep is. Every trial is done, running or waiting."""

    total: int
    done: int
    done_by_others: int = 0
    """Those of `done` that other machines stored."""
    running: int
    running_by_others: Mapping[str, int] = field(default_factory=dict)
    """Those of `running` on other machines, by host."""
    waiting: int
    lost: int = 0
    """How often a worker, a node, a GPU or a claim was lost and a trial had to wait again."""
    repeated: int = 0
    """How many trials began more than once."""
    nodes: int = 1
    nodes_busy: int | None = None
    gpus: int | None = None
    """None if unknown."""
    gpus_busy: int = 0
    left_s: float | None = None
    """None until a trial is done."""
    left_cost: Money | None = None
    """What the GPUs will cost until the end; None without a price, or without a measured trial."""
