"""One detail of another library: its place, the expectation, and the files that rely on it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from profiler.seams.expectations import Expectation


class Absence(StrEnum):
    """Where a name may be missing, so that the project does without it."""

    NEVER = "never"
    OLDER_VERSIONS = "older versions"
    """Below `Seam.since`."""
    SOME_BUILDS = "some builds"
    """Depends on what the library was built with, or on what is installed with it."""


class Part(StrEnum):
    """Parts of the project that rely on a seam."""

    TRAINING = "training"
    SIMULATION = "simulation"
    TRACING = "tracing"
    """Used by the simulation and, on real hardware, by `breakdown=true`."""
    MEASUREMENT = "measurement"
    ESTIMATE = "estimate"
    """Constants that the closed form repeats; no trial runs through them."""
    SCRIPTS = "scripts"
    """Used by `profiler.run` and `VramCallback`: what they recognise the phases of a user's training by, and what they
    replace."""
    COMPARISON = "comparison"
    """Tests that compare a simulated trial with one on the CPU."""


_PART_OF_PATH = (
    ("simulation/device/cpu_choices.py", Part.COMPARISON),
    ("simulation/tracing/", Part.TRACING),
    ("simulation/script/", Part.SCRIPTS),
    ("simulation/", Part.SIMULATION),
    ("training/rollouts/decode_loop.py", Part.SIMULATION),
    ("training/", Part.TRAINING),
    ("scripts/", Part.SCRIPTS),
    ("callback/", Part.SCRIPTS),
    ("measurement/", Part.MEASUREMENT),
    ("analytical/", Part.ESTIMATE),
    ("config/", Part.ESTIMATE),
    ("substitutes/", Part.SCRIPTS),
    ("worker/", Part.SCRIPTS),
)
"""The first prefix that fits a file below `profiler/` decides."""


@dataclass(frozen=True, kw_only=True)
class Seam:
    """One name of another library."""

    owner: str
    """Module, and after a colon the path to a class in it: ``"transformers.cache_utils:DynamicLayer"``."""
    name: str
    expected: Expectation
    used_by: tuple[str, ...]
    """Files below `profiler/`."""
    why: str
    since: str
    """First version of the library that has it, or the oldest one that it was looked up in."""
    absent_in: Absence = Absence.NEVER

    @property
    def key(self) -> str:
        """Owner and name."""
        return f"{self.owner}.{self.name}"

    @property
    def library(self) -> str:
        """The package that has it."""
        return self.owner.partition(":")[0].partition(".")[0]

    @property
    def parts(self) -> frozenset[Part]:
        """The parts of the project that rely on it."""
        return frozenset(_part_of(path) for path in self.used_by)


def _part_of(path: str) -> Part:
    return next(part for prefix, part in _PART_OF_PATH if path.startswith(prefix))


def parts_of(seams: Sequence[Seam], parts: frozenset[Part]) -> tuple[Seam, ...]:
    """Return the seams that any of `parts` relies on."""
    return tuple(seam for seam in seams if seam.parts & parts)
