"""Imports the modules that an environment variable names, in the warmed process.

An import that raises is ignored here, because it would end the warmed process. Each worker then reports the reason.
"""

import importlib
import os
import sys
from contextlib import suppress
from types import TracebackType

VARIABLE = "GRPO_VRAM_PROFILER_PRELOAD"
"""Names of modules, separated by commas. Only the warmed process and its workers have it."""


def _print_unless_abandoned(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Print an exception, unless the sweep ended while it was starting this worker, which has no job then.

    multiprocessing calls it before a worker has taken its job; workers report their own exceptions.
    """
    if not isinstance(error, (EOFError, BrokenPipeError, ConnectionResetError)):
        sys.__excepthook__(kind, error, traceback)


if VARIABLE in os.environ:
    sys.excepthook = _print_unless_abandoned
    for _name in filter(None, os.environ[VARIABLE].split(",")):
        with suppress(Exception):
            importlib.import_module(_name)
