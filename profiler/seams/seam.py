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


class SeamUser(StrEnum):
    """What relies on a seam."""

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


_USER_OF_PATH = (
    ("simulation/device/cpu_choices.py", SeamUser.COMPARISON),
    ("simulation/tracing/", SeamUser.TRACING),
    ("simulation/script/", SeamUser.SCRIPTS),
    ("simulation/", SeamUser.SIMULATION),
    ("training/rollouts/decode_loop.py", SeamUser.SIMULATION),
    ("training/", SeamUser.TRAINING),
    ("scripts/", SeamUser.SCRIPTS),
    ("callback/", SeamUser.SCRIPTS),
    ("measurement/", SeamUser.MEASUREMENT),
    ("analytical/", SeamUser.ESTIMATE),
    ("config/", SeamUser.ESTIMATE),
    ("substitutes/", SeamUser.SCRIPTS),
    ("worker/", SeamUser.SCRIPTS),
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
    def users(self) -> frozenset[SeamUser]:
        """What relies on it."""
        return frozenset(_user_of(path) for path in self.used_by)


def _user_of(path: str) -> SeamUser:
    return next(user for prefix, user in _USER_OF_PATH if path.startswith(prefix))


def seams_of(seams: Sequence[Seam], users: frozenset[SeamUser]) -> tuple[Seam, ...]:
    """Return the seams that any of `users` relies on."""
    return tuple(seam for seam in seams if seam.users & users)
