"""Figures that others published, and which of them belongs beside which of ours."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from profiler.domain.builtin_models import find_builtin
from profiler.domain.optimizers import Optimizer
from profiler.domain.trial import Tuning


@dataclass(frozen=True, kw_only=True)
class PublishedFigure:
    """One figure somebody printed, with as much of its configuration as they state. None: not stated."""

    id: str
    source: str
    """Id of the source, in `sources.csv`."""
    where: str
    """The source itself."""
    trust: str
    """How far to trust it."""
    method: str
    """How they came by it."""
    model: str
    """As they name it."""
    model_assumed: str | None
    """The model that this most likely is; an assumption of ours."""
    gpu: str | None
    tuning: str | None
    optimizer: str | None
    gradient_checkpointing: bool | None
    printed: str
    """The figure as printed, ``"38"`` or ``"OOM"``."""
    unit: str
    """As printed. GB may mean 10**9 or 2**30 bytes: nobody says, so it is never converted."""
    ruler: str
    """What was read: allocated, reserved, requested or unknown."""
    note: str | None

    @property
    def value(self) -> float | None:
        """The figure in its own unit; None for out of memory."""
        return None if self.is_out_of_memory else float(self.printed)

    @property
    def is_out_of_memory(self) -> bool:
        """Whether they print that it did not fit."""
        return self.printed.upper() == "OOM"


GRID_SOURCES: Mapping[str, str] = {"oxen_2025": "oxen-grpo-2025"}
"""Which source each grid repeats; only there are published figures set beside ours."""

_OPTIMIZERS: Mapping[str, tuple[Optimizer, ...]] = {
    "adamw": (Optimizer.ADAMW_TORCH, Optimizer.ADAMW_TORCH_FUSED),
    "adamw_8bit": (Optimizer.ADAMW_8BIT,),
}
"""Their word for an optimizer to ours. Fused or not, AdamW keeps the same state."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """What of a trial decides which published figure it repeats."""

    grid: str
    model: str
    tuning: Tuning
    optim: Optimizer
    gradient_checkpointing: bool


def published_for(method: Method, figures: Iterable[PublishedFigure]) -> PublishedFigure | None:
    """The figure that the trial repeats: same source, model, tuning and optimizer, and checkpointing where stated."""
    source = GRID_SOURCES.get(method.grid)
    return next((figure for figure in figures if figure.source == source and _matches(method, figure)), None)


def _matches(method: Method, figure: PublishedFigure) -> bool:
    ours, theirs = find_builtin(method.model), (figure.model_assumed or "").lower()
    return (
        ours is not None
        and ours.name == theirs
        and figure.tuning == method.tuning
        and method.optim in _OPTIMIZERS.get(figure.optimizer or "", ())
        and figure.gradient_checkpointing in (None, method.gradient_checkpointing)
    )
