"""The packages of an emulation environment: what the profiler needs, at the versions that it is tested with."""

import re
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from profiler.domain.machines.extras import DISTRIBUTION, installed

_CONSTRAINTS = Path(__file__).parents[3] / "constraints.txt"
"""In a clone of the project. An installed profiler takes the versions of its own environment."""

_BROUGHT_SEPARATELY = re.compile(r"torch|triton|nvidia-(?!ml-py).*|cuda-.*")
"""torch and Triton are installed first, as a CUDA build; the vendor's libraries are emulated."""


_EXTRAS = frozenset({"measure"})
"""Trials run there as on a GPU, so that the environment needs what these bring."""


def pinned_packages() -> list[str]:
    """Return a requirement ``name==version`` for each package that the profiler needs, torch and Triton apart."""
    versions = constrained_versions(_CONSTRAINTS.read_text()) if _CONSTRAINTS.is_file() else {}
    here = installed()
    project = DISTRIBUTION if here is None else here.name
    return [
        f"{name}=={versions.get(name) or metadata.version(name)}"
        for name in sorted(needed_packages(project, _EXTRAS))
        if name != project and not _BROUGHT_SEPARATELY.fullmatch(name)
    ]


def default_torch() -> str:
    """Return the version of torch that the profiler is tested with, without the name of a build."""
    versions = constrained_versions(_CONSTRAINTS.read_text()) if _CONSTRAINTS.is_file() else {}
    return (versions.get("torch") or metadata.version("torch")).partition("+")[0]


def constrained_versions(text: str) -> dict[str, str]:
    """Read lines ``name==version`` of a constraints file, by normalised name."""
    pairs = (line.partition("#")[0].strip().partition("==") for line in text.splitlines())
    return {canonicalize_name(name): version for name, _, version in pairs if version}


def needed_packages(project: str, extras: frozenset[str] = frozenset()) -> set[str]:
    """Return the normalised names of a project's requirements and theirs, as far as they are installed here."""
    found: set[str] = set()
    waiting: list[tuple[str, frozenset[str]]] = [(canonicalize_name(project), extras)]
    while waiting:
        name, extras = waiting.pop()
        for requirement in _requirements(name, extras):
            required = canonicalize_name(requirement.name)
            if required not in found and _is_installed(required):
                waiting.append((required, frozenset(requirement.extras)))
                found.add(required)
    return found


def _requirements(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    """The requirements of an installed package that apply here."""
    for line in metadata.requires(name) or ():
        requirement = Requirement(line)
        environments: list[Mapping[str, str]] = [{"extra": extra} for extra in (*extras, "")]
        if requirement.marker is None or any(requirement.marker.evaluate(dict(each)) for each in environments):
            yield requirement


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
