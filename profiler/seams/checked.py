"""Comparing the registered seams with the installed libraries, whose versions were tested.

The versions that the project's tests ran with. Results with any other version are marked.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.trials.trial import Backend
from profiler.seams.libraries import SEAMS
from profiler.seams.patching import patched
from profiler.seams.seam import Absence, Seam, SeamUser, seams_of

BITSANDBYTES_CUDA = "bitsandbytes.backends.cuda.ops"


@cache
def owner_of(owner: str) -> Any:
    """Import the module of an owner and follow the path after its colon.

    Raises:
        ImportError: The module does not exist.
        AttributeError: The path does not exist.
    """
    module, _, path = owner.partition(":")
    found: Any = bitsandbytes_cuda() if module == BITSANDBYTES_CUDA else import_module(module)
    for name in filter(None, path.split(".")):
        found = getattr(found, name)
    return found


@cache
def bitsandbytes_cuda() -> ModuleType:
    """Import the Python code of bitsandbytes for CUDA, which it imports by itself only where there is a GPU.

    The import reads a function of torch that builds for the CPU lack.
    """
    with patched([(import_module("torch._C"), "_cuda_getCurrentRawStream", None)]):
        return import_module(BITSANDBYTES_CUDA)


TESTED: Mapping[str, tuple[str, ...]] = {
    "torch": ("2.13.0",),
    "trl": ("1.16.0",),
    "transformers": ("5.23.0",),
    "peft": ("0.21.2",),
    "bitsandbytes": ("0.50.2",),
    "accelerate": ("1.15.0",),
    "datasets": ("5.2.0",),
    "huggingface_hub": ("2.4.0",),
    "diffusers": ("0.42.1",),
    "modelscope": ("1.40.2",),
    "torchvision": ("0.29.2",),
    "evaluate": ("0.4.6",),
    "vllm": ("0.31.0", "0.24.0"),
    "verl": ("0.9.1",),
}
"""By package, without the suffix of a build (``+cu130``). A test requires the pins of constraints.txt among them."""


@cache
def installed(library: str) -> str | None:
    """Return the installed version without the suffix of its build; None for a package that is not installed."""
    try:
        return version(library).partition("+")[0]
    except PackageNotFoundError:
        return None


def untested() -> Mapping[str, str]:
    """Return the installed versions that were never tested, by package."""
    found = {library: installed(library) for library in TESTED}
    return {
        library: number for library, number in found.items() if number is not None and number not in TESTED[library]
    }


def is_older(version_text: str, than: str) -> bool:
    """Compare the first two numbers of two versions."""
    return _major_minor(version_text) < _major_minor(than)


def _major_minor(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


_USERS_OF: Mapping[Backend, frozenset[SeamUser]] = {
    Backend.SIMULATED: frozenset({SeamUser.TRAINING, SeamUser.SIMULATION, SeamUser.TRACING}),
    Backend.EMULATED: frozenset({SeamUser.TRAINING, SeamUser.MEASUREMENT}),
    Backend.CUDA: frozenset({SeamUser.TRAINING, SeamUser.MEASUREMENT}),
    Backend.CPU: frozenset({SeamUser.TRAINING}),
}

_ABSENT = object()

_MOST_NAMED = 3
"""Seams in one message; `python -m profiler.seams` lists all."""


@dataclass(frozen=True, kw_only=True)
class MovedSeam:
    """A seam that does not hold for the installed version."""

    seam: Seam
    problem: str

    def __str__(self) -> str:
        library = self.seam.library
        return f"{self.seam.key} of {library} {installed(library) or '(not installed)'} {self.problem}"


def check_seams(backend: Backend, *, breakdown: bool = False) -> None:
    """Refuse a backend whose seams have moved; with `breakdown` also those that the attribution of tensors needs.

    Raises:
        UnsupportedTrialError: A seam has moved; the message names it, its library and the installed version.
    """
    users = _USERS_OF[backend] | ({SeamUser.TRACING} if breakdown else set())
    moved = find_moved(seams_of(SEAMS, users))
    if moved:
        raise UnsupportedTrialError(
            f"{_moved_text(moved)}. The profiler relies on it, so the trial does not run. Install a tested "
            f"version ({_tested_text(moved)}), or see python -m profiler.seams"
        )


def _moved_text(moved: Sequence[MovedSeam]) -> str:
    """Return the first seams that have moved, and how many more."""
    more = len(moved) - _MOST_NAMED
    named = "; ".join(map(str, moved[:_MOST_NAMED]))
    return f"{named}; and {more} more" if more > 0 else named


@cache
def note_on_versions() -> str:
    """Return what a record has to say about the installed versions; empty if every one of them was tested.

    It completes the words "not measured:". A constant of the closed form that has moved decides no trial, but its
    estimate: it is noted too.
    """
    moved_constants = find_moved(seams_of(SEAMS, frozenset({SeamUser.ESTIMATE})))
    notes = notes_on_untested(TESTED)
    return "; ".join((*notes, *(f"whether the estimate holds: {each}" for each in moved_constants)))


def notes_on_untested(libraries: Container[str]) -> tuple[str, ...]:
    """Return one note per library of `libraries` whose installed version was never tested; imports none of them."""
    return tuple(
        f"whether figures hold with {library} {number}, which was never tested (tested: {', '.join(TESTED[library])})"
        for library, number in untested().items()
        if library in libraries
    )


def find_moved(seams: Iterable[Seam]) -> tuple[MovedSeam, ...]:
    """Return the seams that do not hold, with what differs."""
    problems = ((seam, problem_of(seam)) for seam in seams)
    return tuple(MovedSeam(seam=seam, problem=problem) for seam, problem in problems if problem)


def problem_of(seam: Seam) -> str:
    """Return what differs from the expectation, as a phrase; empty if the seam holds."""
    try:
        found = getattr(owner_of(seam.owner), seam.name, _ABSENT)
    except (ImportError, AttributeError) as error:
        return "" if _may_be_absent(seam) else f"is missing ({error})"
    if found is _ABSENT:
        return "" if _may_be_absent(seam) else "is missing"
    return seam.expected.problem(found)


def _may_be_absent(seam: Seam) -> bool:
    if seam.absent_in is Absence.OLDER_VERSIONS:
        return is_older(installed(seam.library) or "0", seam.since)
    return seam.absent_in is Absence.SOME_BUILDS


def _tested_text(moved: Iterable[MovedSeam]) -> str:
    libraries = dict.fromkeys(each.seam.library for each in moved)
    return ", ".join(f"{library} {' or '.join(TESTED[library])}" for library in libraries)
