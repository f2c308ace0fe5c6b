"""Values that a script reads on the host and the simulation does not know."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from profiler.simulation.tracing.host_values import noticed_placeholders

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
