"""Making an environment with torch's CUDA build: pinned packages, without what is never used.

What an emulated process never uses of an environment, taken out of it: kernels, symbols for debuggers, profilers.

Only environments that `install` made are touched.
"""

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from profiler.domain.errors import Fault, ProfilerError, UsageError
from profiler.domain.machines.extras import DISTRIBUTION, installed
from profiler.emulation.building.build import (
    COMPLETE,
    TRIALS,
    alone,
    environments_folder,
    interpreter_in,
    require_compilers,
)
from profiler.emulation.interpreter import Interpreter, cache_folder, probe

_KERNELS = ".nv_fatbin"
"""Section of a compiled file: the machine code of its kernels, which the driver would load."""

_SECTION = re.compile(r"\]\s+(\S+)\s+\S+\s+([0-9a-f]+)\s+([0-9a-f]+)\s+([0-9a-f]+)\s")
"""A line of readelf: name, address, offset and size of a section."""

_KEEP_SIZE_AND_PUNCH_HOLE = 1 | 2
"""Flags of fallocate."""


def slim(site_packages: Path, cuda_major: str) -> None:
    """Release the disk space of kernels for a card, and of libraries for other versions of CUDA."""
    for library in sorted((site_packages / "torch" / "lib").glob("libtorch_*.so")):
        _release_kernels(library)
    for library in (site_packages / "bitsandbytes").glob("libbitsandbytes_*.so"):
        if not re.search(rf"_(cpu|cuda{cuda_major}\d)\.so$", library.name):
            library.unlink()
    _slim_triton(site_packages / "triton")


def _slim_triton(triton: Path) -> None:
    """Remove the symbols of its compiler that only a debugger reads, and the profilers of the cards' vendors."""
    for library in (triton / "_C").glob("libtriton*.so"):
        if library.stat().st_nlink == 1:
            subprocess.run(["strip", "--strip-unneeded", str(library)], capture_output=True, check=False)
    for folder in ("backends/nvidia/lib/cupti", "backends/amd/lib", "instrumentation"):
        for library in (triton / folder).glob("*"):
            if library.is_file():
                library.unlink()


def sections(listing: str) -> dict[str, tuple[int, int]]:
    """Read the output of ``readelf --sections --wide``: offset and size of each section in its file."""
    return {name: (int(offset, 16), int(size, 16)) for name, _, offset, size in _SECTION.findall(listing)}


def _release_kernels(library: Path) -> None:
    """Make a hole in the file where its kernels are: it keeps its size, and reads as zeros there.

    A file with several names belongs to a package manager's store as well and stays as it is.
    """
    if library.stat().st_nlink > 1:
        return
    command = ["readelf", "--sections", "--wide", str(library)]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    if _KERNELS not in (found := sections(listed)):
        return
    offset, size = found[_KERNELS]
    descriptor = os.open(library, os.O_RDWR)
    try:
        # A file system without holes refuses, and the environment is larger there.
        fallocate = ctypes.CDLL(None).fallocate
        fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
        fallocate(descriptor, _KEEP_SIZE_AND_PUNCH_HOLE, offset, size)
    finally:
        os.close(descriptor)


_CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
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


SIZE = "about 2 GB on the disk, of which 1.2 GB are downloaded"

_TRITON = re.compile(r"triton==([\w.]+)")


class InstallationError(ProfilerError):
    """The environment could not be made."""


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What an environment gets."""

    name: str
    """Of its folder."""
    torch: str
    """Version, such as ``"2.13.0"``."""
    requirements: Path | None = None
    """A file of pip with pinned packages, which are installed as it lists them, and nothing that they require."""
    has_trainer: bool = True
    """Whether it gets what the profiler needs to run trials there."""


def for_trials(torch: str) -> Contents:
    """Return the environment in which trials run."""
    return Contents(name=f"{TRIALS}{torch}", torch=torch)


def of_file(requirements: Path) -> Contents:
    """Return the environment of a file: all that it lists if it lists torch, else also what trials need.

    Another text of the file is another environment.

    Raises:
        UsageError: It cannot be read, or pins nothing.
    """
    try:
        text = requirements.read_text()
    except (OSError, ValueError) as error:
        problem = f"cannot be read ({getattr(error, 'strerror', None) or 'it is not text'})"
        raise UsageError([Fault(key="requirements", found=str(requirements), problem=problem)]) from error
    versions = constrained_versions(text)
    if not versions:
        hint = "Such as emulated_environments/verl.txt."
        problem = "pins no package, one name==version per line"
        raise UsageError([Fault(key="requirements", found=str(requirements), problem=problem, hint=hint)])
    torch = versions.get("torch")
    return Contents(
        name=f"{requirements.stem}-{hashlib.sha256(text.encode()).hexdigest()[:12]}",
        torch=torch or default_torch(),
        requirements=requirements,
        has_trainer=torch is None,
    )


def install(contents: Contents, *, base: Path | None, announce: Callable[[str], None]) -> Path:
    """Make an environment, and return its interpreter. A complete one is kept as it is.

    With the trainer it gets the versions that are installed here, and those of what the trainer requires.

    Args:
        contents: Its packages.
        base: Interpreter that makes the environment; by default this one.
        announce: Called with a sentence before each part that takes long.

    Raises:
        ProfilerError: A compiler is missing, pip fails, or the folder cannot be written.
    """
    require_compilers()
    folder = environments_folder() / contents.name
    size = f" ({SIZE})" if contents.requirements is None else ""
    announce(f"Environment with torch {contents.torch} for CUDA, without the vendor's libraries: {folder}{size}.")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with alone(folder.parent / f"{folder.name}.lock", "makes this environment", announce=announce):
            if (folder / COMPLETE).exists():
                announce("It is there already.")
            else:
                _make(folder, contents, base or Path(sys.executable), announce)
    except OSError as error:
        raise InstallationError(f"{folder}: could not be written ({error.strerror or error}).") from error
    return interpreter_in(folder)


STARTS = "emulated_start.pth"
_START = (
    "import os, sys; f = os.environ.get('EMULATED_PROFILER'); f and not sys.flags.ignore_environment and "
    "sys.path.insert(0, os.path.join(f, 'emulation', 'startup'))\n"
)
"""A line that Python runs at its start, before it looks for a `sitecustomize.py`."""


def startable(executable: Path) -> Interpreter:
    """Return what `probe` does, and let every process of an environment of ours be prepared at its start.

    A script may replace PYTHONPATH, by which other environments are prepared: those are left as they are.

    Raises:
        UsageError: As `probe`.
    """
    found = probe(executable)
    start = found.site_packages / STARTS
    if cache_folder() in found.executable.parents and not start.exists():
        with suppress(OSError):  # of another user, who has made it
            start.write_text(_START)
    return found


def _make(folder: Path, contents: Contents, base: Path, announce: Callable[[str], None]) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # what an interrupted installation left
    _run([str(base), "-P", "-m", "venv", str(folder)], "the environment")
    pip = [str(interpreter_in(folder)), "-P", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip.append("--no-deps")
    announce(f"Installing torch {contents.torch} and Triton.")
    # With `===` pip takes the index's CUDA build even where a build for the CPU is at hand.
    _run([*pip, f"torch==={contents.torch}"], f"torch {contents.torch}")
    _run([*pip, f"triton=={_required_triton(folder)}"], "Triton")
    if contents.has_trainer:
        announce("Installing the packages that the profiler needs, at the versions that it is tested with.")
        _run([*pip, *pinned_packages()], "the packages")
    if contents.requirements is not None:
        announce(f"Installing the packages of {contents.requirements}.")
        _run([*pip, "-r", str(contents.requirements)], f"the packages of {contents.requirements}")
    interpreter = probe(interpreter_in(folder))
    slim(interpreter.site_packages, interpreter.cuda.partition(".")[0])
    (folder / COMPLETE).write_text(f"{interpreter.torch}\n")


def _required_triton(folder: Path) -> str:
    """Return the version of Triton that the installed torch requires."""
    interpreter = probe(interpreter_in(folder))
    versions = [match[1] for line in interpreter.requires if (match := _TRITON.match(line))]
    if not versions:
        problem = "does not say which Triton it requires"
        raise UsageError([Fault(key="torch", found=interpreter.torch, problem=problem)])
    return versions[0]


def _run(command: Sequence[str], what: str) -> None:
    try:
        subprocess.run(command, capture_output=True, text=True, check=True)
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "ERROR" in line] or lines or ["no reason given"]
        raise InstallationError(f"Could not install {what}: {errors[-1].strip()}") from error
    except OSError as error:
        raise InstallationError(f"{command[0]} could not be started ({error.strerror or error}).") from error
