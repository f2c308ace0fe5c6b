"""Substitutes for what a script loads, switched on when the script first imports a library that loads something."""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType

from profiler.domain.script import ScriptJob
from profiler.domain.trial import Backend
from profiler.seams.import_hooks import around_import

LOADERS = ("transformers", "datasets")
"""The substitutes replace functions of both."""


@contextmanager
def late_substitutes(job: ScriptJob) -> Iterator[list[str]]:
    """Yield a list, which at the end has the sentence on what was replaced.

    A script without these libraries does without their imports, which take seconds.
    """
    sentences: list[str] = []
    with ExitStack() as stack:
        started: list[object] = []

        def start(_module: ModuleType | None = None) -> None:
            if started:
                return
            started.append(None)
            from profiler.substitutes import SubstituteOptions, WeightsFrom, substitutes

            options = SubstituteOptions(
                weights=WeightsFrom(job.spec.weights.value),
                with_values=job.spec.backend is Backend.CUDA,
                script=Path(job.spec.script),
            )
            replaced = stack.enter_context(substitutes(options))
            stack.callback(lambda: sentences.append(replaced.line()))

        if all(importlib.util.find_spec(name) is not None for name in LOADERS):
            for name in LOADERS:
                if name in sys.modules:
                    start()
                else:
                    stack.callback(around_import(name, after=start))
        yield sentences
