"""The Python program that workers run in, if it is not the one of the sweep."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import spawn

from profiler.domain.trials.trial import TrialSpec


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """A Python program of the same minor version, with all of its environment variables and its search path."""

    executable: str
    environment: Mapping[str, str]
    search_path: tuple[str, ...]
    """Its `sys.path`. multiprocessing gives workers that of the sweep, which has other packages."""


InterpreterOf = Callable[[TrialSpec], Interpreter | None]
"""Returns the Python that a trial runs in; None for that of the sweep."""


def own_python(_: TrialSpec) -> None:
    """Return None: every trial runs in the Python of the sweep."""


@contextmanager
def starting_with(interpreter: Interpreter | None) -> Iterator[None]:
    """Let multiprocessing start processes in `interpreter` while the block runs; None changes nothing."""
    if interpreter is None:
        yield
        return
    executable, environment, path = spawn.get_executable(), dict(os.environ), list(sys.path)
    spawn.set_executable(interpreter.executable)
    _set_environment(interpreter.environment)
    sys.path[:] = interpreter.search_path
    try:
        yield
    finally:
        sys.path[:] = path
        _set_environment(environment)
        spawn.set_executable(executable)


def _set_environment(variables: Mapping[str, str]) -> None:
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)
