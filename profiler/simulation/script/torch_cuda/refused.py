"""What a simulated card refuses of a script, and values that it reads and nobody knows."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from profiler.domain.errors import UnsupportedTrialError
from profiler.simulation.tracing.host_values import noticed_placeholders


def refused(what: str, hint: str = "; backend=emulated runs it") -> Callable[..., Any]:
    """Return a function that refuses to run, in the name of `what`."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise UnsupportedTrialError(f"{what} of the script cannot be simulated{hint}")

    return refuse


def refused_class(what: str, hint: str = "; backend=emulated runs it") -> type:
    """Return a class, as torch has one, that cannot be made."""
    return type("Refused", (), {"__init__": refused(what, hint)})


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


_MOST_PLACES = 4
_PROFILER = Path(__file__).parents[3]
_TORCH = Path(torch.__file__).parent


class UnknownReads:
    """The places at which the host read a placeholder, and other facts that make a record uncertain."""

    def __init__(self) -> None:
        self._places: dict[str, None] = {}
        self._facts: dict[str, None] = {}

    def note(self, fact: str) -> None:
        """Take note of something that the simulation assumes, as a phrase."""
        self._facts.setdefault(fact)

    @contextmanager
    def noticing(self) -> Iterator[None]:
        """While active, each read of a placeholder is noticed."""
        with noticed_placeholders(self._read):
            yield

    def phrases(self) -> tuple[str, ...]:
        """Return what a record has to say, one phrase per fact."""
        if not self._places:
            return tuple(self._facts)
        places = list(self._places)
        shown = ", ".join(places[:_MOST_PLACES])
        more = f" and {len(places) - _MOST_PLACES} more places" if len(places) > _MOST_PLACES else ""
        return (
            *self._facts,
            f"whether memory depends on values that the script reads from the card, which are not computed: {shown}"
            f"{more}",
        )

    def _read(self, dtype: torch.dtype) -> None:
        kind = "float" if dtype.is_floating_point else str(dtype).removeprefix("torch.")
        self._places.setdefault(f"{kind} at {_place()}")


def _place() -> str:
    """Return the innermost line that is neither of torch nor of this program, ``"train.py:41"``."""
    frame = inspect.currentframe()
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if _PROFILER not in path.parents and _TORCH not in path.parents and path.is_absolute():
            return f"{path.name}:{frame.f_lineno}"
        frame = frame.f_back
    return "an unknown line"
