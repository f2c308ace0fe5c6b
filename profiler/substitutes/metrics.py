"""Metrics of `evaluate` that are unavailable: they take what they are given, and answer every figure alike."""

from types import ModuleType
from typing import Any

from profiler.seams.patching import Patch
from profiler.substitutes.replaced import Replaced

_FIGURE = 0.5


def metric_patches(evaluate: ModuleType, replaced: Replaced) -> list[Patch]:
    """Return the patch of `evaluate.load`, which downloads the program of a metric."""
    load = _instead_of(evaluate.load, replaced)
    return [(evaluate, "load", load), (evaluate.loading, "load", load)]


class _Figures(dict[str, float]):
    """The figures of a metric: any name is one of them."""

    def __missing__(self, name: str) -> float:
        self[name] = _FIGURE
        return _FIGURE


class SubstituteMetric:
    """A metric that computes nothing."""

    def __init__(self, name: str) -> None:
        self.name = name

    def add(self, *_: Any, **__: Any) -> None:
        """Do nothing with a prediction."""

    def add_batch(self, *_: Any, **__: Any) -> None:
        """Do nothing with several predictions."""

    def compute(self, *_: Any, **__: Any) -> _Figures:
        """Return figures that have any name."""
        return _Figures()


def _instead_of(load: Any, replaced: Replaced) -> Any:
    def loaded(path: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return load(path, *args, **kwargs)
        except (FileNotFoundError, ConnectionError):
            replaced.add("metric", str(path), f"computes nothing, every figure is {_FIGURE}")
            return SubstituteMetric(str(path))

    return loaded
