"""The backend of a script, the Python that runs it, and its card."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from profiler.config.options.reading import is_text_or_none, is_texts, is_version, read_answer, versions_of
from profiler.config.trials.specification import DEFAULT_GPU
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import Fault, ProfilerError, UsageError
from profiler.domain.machines.extras import Extra, install_hint
from profiler.domain.memory import gib_text
from profiler.domain.runs.other_runs import NamedCard
from profiler.domain.runs.outcome import NAMING_PACKAGES, Versions
from profiler.domain.trials.trial import Backend
from profiler.emulation.card import unlimited as without_limit
from profiler.emulation.interpreter import EMULATION_VERSION, answer_of
from profiler.emulation.launch import EmulatedPython, Events, emulated_python, process_environment
from profiler.measurement.driver.visible import VisibleGpu, VisibleGpus, capability_environment, visible_gpus
from profiler.run.command import AUTO, ScriptBackend, ScriptOptions
from profiler.storage.files.foreign_files import expanded
from profiler.storage.records.versioned import installed_versions

_ANSWER_S = 60.0

_QUESTION = (
    f"names = {NAMING_PACKAGES}"
    + """
import importlib.util, json, runpy, sys
from importlib.metadata import PackageNotFoundError, version
def of(package):
    try:
        return version(package)
    except PackageNotFoundError:
        return None
spec = importlib.util.find_spec("torch")
cuda = None
if spec is not None and spec.submodule_search_locations:
    cuda = runpy.run_path(list(spec.submodule_search_locations)[0] + "/version.py").get("cuda")
missing = [name for name in ("torch", "numpy", "yaml") if importlib.util.find_spec(name) is None]
versions = {name: of(name) for name in names}
print(json.dumps({"python": sys.version_info[:2], "versions": versions, "cuda": cuda, "missing": missing}))
"""
)

_FORM = {
    "python": is_version,
    "versions": versions_of(*NAMING_PACKAGES),
    "cuda": is_text_or_none,
    "missing": is_texts,
}

_OLDEST = (3, 11)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a script runs."""

    backend: Backend
    line: str
    """The first line for the user: which backend, and why."""
    executable: Path
    versions: Versions
    gpu: str | None
    card: NamedCard | None = None
    emulated: EmulatedPython | None = None

    def environment(
        self, *, num_processes: int, strict: bool, events: Events = Events.EARLY, unlimited: bool = False
    ) -> dict[str, str]:
        """Return the environment variables of the script's process.

        Args:
            num_processes: Ranks of the job.
            strict: As in `process_environment`.
            events: When events of an emulated card count as reached.
            unlimited: Whether the emulated card has more memory than any script takes.
        """
        own = dict(os.environ)
        if self.emulated is not None:
            known = KNOWN_GPUS[str(self.gpu)]
            gpu = without_limit(known) if unlimited else known
            visible = VisibleGpu(
                uuid="", name=gpu.title, memory_bytes=gpu.memory_bytes, compute_capability=gpu.compute_capability
            )
            base = own | dict(capability_environment([visible]))
            return process_environment(
                self.emulated,
                gpu,
                cards=num_processes,
                num_processes=num_processes if num_processes > 1 else None,  # one starts by itself
                base=base,
                events=events,
                strict=strict,
            )
        if self.card is not None:
            own["CUDA_VISIBLE_DEVICES"] = self.card.uuid
        return own


@dataclass(frozen=True, kw_only=True)
class World:
    """What there is on this machine."""

    visible: Callable[[], VisibleGpus] = visible_gpus
    emulated: Callable[..., EmulatedPython] = emulated_python


@dataclass(frozen=True, kw_only=True)
class _Python:
    """What a Python says about itself."""

    executable: Path
    versions: Versions
    cuda: str | None
    """The CUDA release that its torch was built for; None for a build for the CPU."""


def choose_place(options: ScriptOptions, *, num_processes: int, world: World | None = None) -> Place:
    """Return where the script runs.

    Raises:
        UsageError: The backend is not possible here, with every fault found.
        ProfilerError: The emulated libraries cannot be built.
    """
    here = world or World()
    if options.backend is ScriptBackend.CUDA:
        return _on_gpu(options, here.visible(), num_processes, _ask(_python_of(options)))
    if options.backend is ScriptBackend.EMULATED:
        return _emulated(options, here, "")
    if options.backend is ScriptBackend.SIMULATED:
        return _simulated(options, "")
    return _automatic(options, here, num_processes)


def _automatic(options: ScriptOptions, world: World, num_processes: int) -> Place:
    visible = world.visible()
    why_not = visible.note
    if visible.gpus:
        python = _ask(_python_of(options))
        name = visible.gpus[0].name
        if python.cuda and num_processes == 1:
            return _on_gpu(options, visible, num_processes, python, reason=f"{name} is visible")
        why_not = (
            f"torch {python.versions.torch} is a build without CUDA, though {name} is visible"
            if python.cuda is None
            else f"{num_processes} processes are not measured"
        )
    try:
        return _emulated(options, world, why_not)
    except ProfilerError as error:
        return _simulated(options, f"{why_not}, and emulated is not possible: {error}".rstrip("."))


def _on_gpu(
    options: ScriptOptions, visible: VisibleGpus, num_processes: int, python: _Python, *, reason: str = ""
) -> Place:
    faults = []
    if not visible.gpus:
        hint = "backend=emulated and backend=simulated need no GPU."
        faults.append(Fault(key="backend", found="cuda", problem=f"needs a GPU, but {visible.note}", hint=hint))
    elif python.cuda is None:
        problem = f"has torch {python.versions.torch}, a build without CUDA"
        faults.append(Fault(key="python", found=str(python.executable), problem=problem, hint="Name another python."))
    if num_processes > 1:
        faults.append(
            Fault(
                key="num_processes",
                found=str(num_processes),
                problem="backend=cuda measures one process",
                hint="backend=emulated shows rank 0 of several.",
            )
        )
    faults.extend(_cap_faults(options.gpu, visible))
    if faults:
        raise UsageError(faults)
    gpu = visible.gpus[0]
    return Place(
        backend=Backend.CUDA,
        line=_line(options, Backend.CUDA, reason, on=gpu.name),
        executable=python.executable,
        versions=python.versions,
        gpu=options.gpu,
        card=NamedCard(
            uuid=gpu.uuid,
            name=gpu.name,
            memory_bytes=gpu.memory_bytes,
            compute_capability=gpu.compute_capability or (0, 0),
        ),
    )


def _cap_faults(cap: str | None, visible: VisibleGpus) -> list[Fault]:
    if cap is None or not visible.gpus:
        return []
    known, real = KNOWN_GPUS[cap], visible.gpus[0]
    if known.memory_bytes <= real.memory_bytes or known.is_called(real.name, real.memory_bytes):
        return []
    problem = (
        f"a real card can only be capped to a smaller one; {cap} has {gib_text(known.memory_bytes)}, the card of this "
        f"machine {gib_text(real.memory_bytes)}"
    )
    return [Fault(key="gpu", found=cap, problem=problem, hint="backend=emulated emulates any card.")]


def _emulated(options: ScriptOptions, world: World, reason: str) -> Place:
    given = None if options.python is None else _python_of(options)
    python = world.emulated(given, strict=options.strict)
    found = _ask(python.executable)
    versions = replace(found.versions, torch=python.torch, cuda=python.cuda, emulation=EMULATION_VERSION)
    gpu = options.gpu or DEFAULT_GPU
    why = f"{reason}, and torch {python.torch} is in {python.executable}" if reason else ""
    return Place(
        backend=Backend.EMULATED,
        line=_line(options, Backend.EMULATED, why, on=KNOWN_GPUS[gpu].title),
        executable=python.executable,
        versions=versions,
        gpu=gpu,
        emulated=python,
    )


def _simulated(options: ScriptOptions, reason: str) -> Place:
    python = _ask(_python_of(options))
    gpu = options.gpu or DEFAULT_GPU
    return Place(
        backend=Backend.SIMULATED,
        line=_line(options, Backend.SIMULATED, reason, on=KNOWN_GPUS[gpu].title),
        executable=python.executable,
        versions=python.versions,
        gpu=gpu,
    )


def _line(options: ScriptOptions, backend: Backend, reason: str, *, on: str) -> str:
    if options.backend == AUTO:
        return f"backend=auto: {backend} on {on}, because {reason}."
    return f"backend={backend} on {on}."


def _python_of(options: ScriptOptions) -> Path:
    if options.python is None:
        return Path(sys.executable)
    try:
        found = expanded(str(options.python))
        is_program = found.is_file() and os.access(found, os.X_OK)
    except (OSError, ValueError):
        is_program = False
    if not is_program:
        hint = "Give the interpreter, such as /path/to/environment/bin/python."
        raise UsageError(
            [Fault(key="python", found=str(options.python), problem="must be a file that can be run", hint=hint)]
        )
    return found.absolute()


def _ask(executable: Path) -> _Python:
    """Ask a Python for its versions; it imports none of the packages.

    Raises:
        UsageError: It cannot run a script for this program.
    """
    said = _answer(executable)
    if tuple(said["python"]) < _OLDEST:
        raise _unfit(executable, f"is Python {'.'.join(map(str, said['python']))}, and 3.11 or newer is needed")
    if said["missing"]:
        extra = f" {install_hint(Extra.SIMULATE)}" if executable == Path(sys.executable) else ""
        raise _unfit(executable, f"has no {', '.join(said['missing'])}", hint=f"Name another python.{extra}")
    versions = Versions(**said["versions"], profiler=installed_versions().profiler)
    return _Python(executable=executable, versions=versions, cuda=said["cuda"])


def _answer(executable: Path) -> dict[str, Any]:
    try:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        question = [str(executable), "-c", _QUESTION]
        return read_answer(answer_of(question, environment=environment, timeout_s=_ANSWER_S, cwd="/"), _FORM)
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"exit code {error.returncode}"]
        raise _unfit(executable, f"does not run ({lines[-1]})") from error
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise _unfit(executable, f"does not say what it has ({error})") from error


def _unfit(executable: Path, problem: str, *, hint: str = "Name another python.") -> UsageError:
    return UsageError([Fault(key="python", found=str(executable), problem=problem, hint=hint)])
