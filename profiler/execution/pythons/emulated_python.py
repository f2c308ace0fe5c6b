"""The Python of a sweep's emulated trials: which one, and how workers start in it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from profiler.config.options.run_options import RunOptions
from profiler.config.trials.specification import DEFAULT_GPU
from profiler.domain.cards.gpu import KNOWN_GPUS, Gpu
from profiler.domain.runs.outcome import Versions
from profiler.domain.trials.trial import TrialSpec
from profiler.emulation.launch import EmulatedPython, emulated_python, process_environment
from profiler.emulation.version import EMULATION_VERSION
from profiler.execution.pythons.interpreter import Interpreter
from profiler.execution.pythons.other_python import ask, executable_of
from profiler.measurement.driver.visible import VisibleGpu, capability_environment

_NEEDED = ("trl", "transformers", "peft")
"""Packages without which no trial runs; torch has been found already."""

_HINT = "python -m profiler.emulation install makes an environment that has everything."


@dataclass(frozen=True, kw_only=True)
class EmulatedWorkers:
    """Workers in a Python with torch's CUDA build, on emulated cards."""

    python: EmulatedPython
    versions: Versions
    """Of the packages that are installed there."""
    search_path: tuple[str, ...]
    strict: bool

    def interpreter_of(self, spec: TrialSpec) -> Interpreter:
        """Return the Python of an emulated trial, with its card in the environment variables."""
        return Interpreter(
            executable=str(self.python.executable),
            environment=_environment(
                self.python, KNOWN_GPUS[str(spec.gpu)], strict=self.strict, num_processes=spec.num_processes
            ),
            search_path=self.search_path,
        )


def emulated_workers(options: RunOptions) -> EmulatedWorkers:
    """Return the workers in the Python that `options` name, or else in the one that the emulation finds.

    Raises:
        UsageError: There is no such Python, or it lacks something.
        ProfilerError: The emulated libraries cannot be built.
    """
    python = emulated_python(executable_of(options), strict=options.strict)
    environment = _environment(python, KNOWN_GPUS[DEFAULT_GPU], strict=True)
    answer = ask(python.executable, environment, needed=_NEEDED, hint=_HINT)
    versions = replace(answer.versions, torch=python.torch, cuda=python.cuda, emulation=EMULATION_VERSION)
    return EmulatedWorkers(python=python, versions=versions, search_path=answer.search_path, strict=options.strict)


def _environment(python: EmulatedPython, gpu: Gpu, *, strict: bool, num_processes: int = 1) -> Mapping[str, str]:
    """Return the variables of a process on the card: this process's own and the emulation's.

    With several processes it is rank 0; the others are taken to hold what it holds.
    """
    card = VisibleGpu(uuid="", name=gpu.title, memory_bytes=gpu.memory_bytes, compute_capability=gpu.compute_capability)
    base = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # Every trial has a card of its own, so the driver lists no other process.
    base |= {**capability_environment([card] * num_processes), "EMULATED_PROCESSES": os.devnull}
    return process_environment(python, gpu, num_processes=num_processes, base=base, strict=strict)
