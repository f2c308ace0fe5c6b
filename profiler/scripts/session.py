"""The protocol of a device on which a script runs, and the parameters of the models that it trains.

The protocol of a device on which a script runs, and its simplest implementation.

`running.py` runs a script in a session. Real and emulated cards use `CountedSession`; the simulated card has a session
of its own, with the same methods.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import ref

from profiler.domain.memory import Phase

Count = Callable[[Any], tuple[int, int]]
"""Returns the parameters without adapters and the trainable ones of an object that has `named_parameters`."""


@dataclass(frozen=True)
class _Named:
    """Some parameters in the form of a model."""

    pairs: tuple[tuple[str, Any], ...]

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        return iter(self.pairs)


@dataclass
class ParameterTotals:
    """The parameters of all models and optimizers so far."""

    count: Count
    parameters: int = 0
    trainable: int = 0
    _known: set[int] = field(default_factory=set)

    def add_model(self, model: Any) -> None:
        """Add a module that runs with gradient and in no other; it may share parameters with earlier ones."""
        self._add(model.named_parameters())

    def add_optimizer(self, optimizer: Any) -> None:
        """Add what an optimizer trains, such as an LM head that is applied without its module."""
        self._add(("", parameter) for group in optimizer.param_groups for parameter in group["params"])

    def _add(self, pairs: Iterable[tuple[str, Any]]) -> None:
        new = tuple((name, parameter) for name, parameter in pairs if id(parameter) not in self._known)
        self._known.update(id(parameter) for _, parameter in new)
        parameters, trainable = self.count(_Named(new))
        self.parameters += parameters
        self.trainable += trainable


class ScriptSession(Protocol):
    """A device for one script, with whatever follows the script on it.

    The order of calls: `running()` is entered; `enter(Phase.LOAD)`; the script runs and the other methods are called as
    things are seen; `running()` is left, after the script's exit handlers. All calls are made by the script's threads,
    before the thing that they announce has allocated anything.
    """

    def running(self) -> AbstractContextManager[None]:
        """The context of the whole script, from its first line to its last exit handler."""

    def enter(self, phase: Phase) -> None:
        """Begin `phase`; it lasts until the next one begins. Called again with the same phase when it is resumed."""

    def model_found(self, model: Any) -> None:
        """Take note of a module that runs in no other module, before its first forward pass."""

    def model_trained(self, model: Any) -> None:
        """Take note that such a module runs with gradient, before it does so first."""

    def optimizer_found(self, optimizer: Any) -> None:
        """Take note of an optimizer, before its first step."""

    def step_done(self, step: int) -> None:
        """Take note that optimizer step `step`, from 1, is over. The script may be ended right after this call."""


@dataclass(frozen=True)
class PhasesOnly:
    """A session that passes phases and the end of steps on, and nothing else."""

    enter: Callable[[Phase], None]
    step_done: Callable[[int], None] = lambda _: None

    def running(self) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()

    def model_found(self, model: Any) -> None:
        """Do nothing."""

    def model_trained(self, model: Any) -> None:
        """Do nothing."""

    def optimizer_found(self, optimizer: Any) -> None:
        """Do nothing."""


class CountingObserver(Protocol):
    """Is notified when a phase begins, and of the size of what is trained."""

    def enter(self, phase: Phase) -> None:
        """Begin `phase`; it lasts until the next one begins."""

    def model_built(self, *, parameters: int, trainable: int) -> None:
        """Take note of the number of parameters and of trainable ones."""


@dataclass(frozen=True, kw_only=True)
class CountedSession:
    """A real or emulated card, whose counters `observer` reads."""

    observer: CountingObserver
    totals: ParameterTotals
    before_phase: Callable[[Phase], None] = lambda _: None
    """Called before a phase begins."""
    models: list[Any] = field(default_factory=list)
    """Weak references to the modules that run in no other, in the order of their first pass."""
    optimizers: list[Any] = field(default_factory=list)
    """Weak references to the optimizers, in the order of their first step."""

    def running(self) -> AbstractContextManager[None]:
        """Do nothing: the script finds the card by itself."""
        return nullcontext()

    def enter(self, phase: Phase) -> None:
        """Pass the phase on."""
        self.before_phase(phase)
        self.observer.enter(phase)

    def model_found(self, model: Any) -> None:
        """Keep it, so that its tensors can be named."""
        self.models.append(ref(model))

    def model_trained(self, model: Any) -> None:
        """Count its parameters."""
        self.totals.add_model(model)
        self._tell()

    def optimizer_found(self, optimizer: Any) -> None:
        """Count what it trains."""
        self.optimizers.append(ref(optimizer))
        self.totals.add_optimizer(optimizer)
        self._tell()

    def _tell(self) -> None:
        self.observer.model_built(parameters=self.totals.parameters, trainable=self.totals.trainable)

    def step_done(self, step: int) -> None:
        """Do nothing."""
