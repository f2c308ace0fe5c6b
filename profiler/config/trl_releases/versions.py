"""Releases of trl by their first two numbers, and intervals of them: ``0.15 to 0.17``."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

RELEASES = (
    *(f"0.{number}" for number in range(14, 30)),
    *(f"1.{number}" for number in range(17)),
)
"""Every release since the first with `GRPOTrainer`, in order. A patch release is read as the release it mends."""

KEY = "trl"
"""The key of a command that states the release."""

OLDEST, NEWEST = RELEASES[0], RELEASES[-1]

_FORM = re.compile(r"v?(\d+\.\d+)(\.\d+)?")


def release_of(text: str) -> str | None:
    """Return the release that a user names, such as ``0.18``, ``v0.18`` or ``0.18.1``; None if it is unknown."""
    found = _FORM.fullmatch(text.strip())
    return found[1] if found is not None and found[1] in RELEASES else None


@dataclass(frozen=True)
class Versions:
    """An interval of releases, both ends included."""

    first: str = OLDEST
    last: str = NEWEST

    @classmethod
    def of(cls, text: str) -> Self:
        """Return the interval of ``0.15 to 0.17``, or of one release."""
        first, _, last = text.partition(" to ")
        return cls(first, last or first)

    @property
    def releases(self) -> tuple[str, ...]:
        """The releases of the interval, in order; empty if it ends before it begins."""
        return RELEASES[RELEASES.index(self.first) : RELEASES.index(self.last) + 1]

    def __contains__(self, release: str) -> bool:
        """Return whether the interval has `release`."""
        return release in self.releases

    def __and__(self, other: "Versions") -> "Versions | None":
        """Return the releases of both; None if there are none."""
        first = max(self.first, other.first, key=RELEASES.index)
        last = min(self.last, other.last, key=RELEASES.index)
        return Versions(first, last) if RELEASES.index(first) <= RELEASES.index(last) else None

    def __str__(self) -> str:
        return self.first if self.first == self.last else f"{self.first} to {self.last}"


def spans(releases: Iterable[str]) -> tuple[Versions, ...]:
    """Return the intervals that `releases` are, in order. By hand, 0.14, 0.15 and 0.17: 0.14 to 0.15, and 0.17."""
    found: list[Versions] = []
    for release in sorted(releases, key=RELEASES.index):
        if found and RELEASES.index(release) == RELEASES.index(found[-1].last) + 1:
            found[-1] = Versions(found[-1].first, release)
        else:
            found.append(Versions(release, release))
    return tuple(found)


def spans_text(releases: Iterable[str]) -> str:
    """Return the intervals of `releases` as a phrase: ``0.14 to 0.15 and 0.17``."""
    return " and ".join(map(str, spans(releases)))
