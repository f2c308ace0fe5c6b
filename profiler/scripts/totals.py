"""Parameters of the models that a script trains, each counted once."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

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
