"""The state of a running sweep on all of its machines: what its progress line shows."""

from collections.abc import Mapping
from dataclasses import dataclass, field


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
