"""Published figures, and the trials to which they belong."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from profiler.domain.models.builtin_models import find_builtin
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.trial import Tuning


@dataclass(frozen=True, kw_only=True)
class PublishedFigure:
    """One published figure, with its configuration as far as the source states it. None: not stated."""

    id: str
    source: str
    """Id of the source, in `sources.csv`."""
    where: str
    """Author, title and date of the source."""
    trust: str
    """How far to trust it."""
    method: str
    """How the figure was obtained."""
    model: str
    """As the source names it."""
    model_assumed: str | None
    """The model that is most likely meant; an assumption of this project."""
    gpu: str | None
    tuning: str | None
    optimizer: str | None
    gradient_checkpointing: bool | None
    printed: str
    """The figure as printed, ``"38"`` or ``"OOM"``."""
    unit: str
    """As printed. GB can be 10**9 or 2**30 bytes; sources do not state it, so figures are never converted."""
    metric: str
    """The kind of memory: allocated, reserved, requested or unknown."""
    note: str | None

    @property
    def value(self) -> float | None:
        """The figure in its own unit; None for out of memory."""
        return None if self.is_out_of_memory else float(self.printed)

    @property
    def is_out_of_memory(self) -> bool:
        """Whether the source says that the trial did not fit."""
        return self.printed.upper() == "OOM"


GRID_SOURCES: Mapping[str, str] = {"oxen_2025": "oxen-grpo-2025"}
"""The source that a grid repeats; only trials of these grids are compared with published figures."""

_OPTIMIZERS: Mapping[str, tuple[Optimizer, ...]] = {
    "adamw": (Optimizer.ADAMW_TORCH, Optimizer.ADAMW_TORCH_FUSED),
    "adamw_8bit": (Optimizer.ADAMW_8BIT,),
}
"""The sources' name of an optimizer to the values of `optim`. Fused or not, AdamW keeps the same state."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """The keys of a trial that decide which published figure it repeats."""

    grid: str
    model: str
    tuning: Tuning
    optim: Optimizer
    gradient_checkpointing: bool


def published_for(method: Method, figures: Iterable[PublishedFigure]) -> PublishedFigure | None:
    """Return the figure of the same source, model, tuning and optimizer, and of the same checkpointing if stated."""
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
