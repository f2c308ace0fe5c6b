"""What a simulated card refuses of a script."""

from collections.abc import Callable
from typing import Any

from profiler.domain.errors import UnsupportedTrialError


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
