"""The page of limits: what is not seen, not known and replaced, in the words of the packages whose limits they are."""

from collections.abc import Iterator, Mapping

from maintenance.pages.docstrings import limits_of
from maintenance.pages.reference.words import BEGINNINGS

_PACKAGES: Mapping[str, str] = {
    "config": "Jobs",
    "scripts": "Your own script",
    "substitutes": "Substitutes",
    "simulation": "The simulation",
    "emulation": "The emulated card",
    "allocator": "The allocator and snapshots",
    "cluster": "Clusters",
}

_HEAD = """\
# Limits

What is not seen, not known and replaced, by the package that it is about. [Refused combinations](refused.md) lists what
is refused before a trial runs, and [not counted](trl_releases.md#not-counted) what some releases of trl need in
addition."""


def limits_page() -> str:
    """Return the whole page."""
    return "\n\n".join([_HEAD, *_parts()]) + "\n"


def _parts() -> Iterator[str]:
    for package, title in _PACKAGES.items():
        yield f"## {title}"
        for heading, bullets in limits_of(package).items():
            if heading != BEGINNINGS:
                yield f"### {heading}"
                yield "\n".join(f"- {bullet}" for bullet in bullets)
