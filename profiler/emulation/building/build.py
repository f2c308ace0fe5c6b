"""The emulated libraries of one installed torch, built once by the compilers, and the environments that are there."""

import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from profiler.domain.errors import Fault, ProfilerError, UsageError
from profiler.emulation.building.library_sources import (
    ANSWERS,
    CORE_LIBRARY,
    CORE_SOURCES,
    VALUES_LIBRARY,
    VALUES_SOURCES,
    ExpectedLibrary,
    compiled_files,
    driver_folder,
    every_source,
    expected_libraries,
    generated_answers,
    seen_entry_points,
    version_script,
)
from profiler.emulation.interpreter import VARIABLE, Interpreter, cache_folder


def libraries_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder of built libraries; one folder in it per torch."""
    return cache_folder(environment) / "emulated_libraries"


def environments_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder of environments that `python -m profiler.emulation install` made."""
    return cache_folder(environment) / "emulated_environments"


_SILENT_S = 1.0
"""How long a process waits for another one before it says so."""


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")


@contextmanager
def alone(lock: Path, does: str, *, announce: Callable[[str], None] = _to_stderr) -> Iterator[None]:
    """Let one process at a time into the block, and say after a second that it waits.

    Args:
        lock: File of the lock.
        does: What the other process does, as words after "another process that".
        announce: Receives the sentence.
    """
    held = FileLock(lock)
    try:
        held.acquire(timeout=_SILENT_S)
    except Timeout:
        announce(f"Waiting for another process that {does}.")
        held.acquire()
    try:
        yield
    finally:
        held.release()


def refuse_of_others(folder: Path) -> None:
    """Refuse a folder of the cache whose files another user could have written: they are run with our rights.

    Looks at the folder, what is directly in it, and the folders above it up to the cache folder. Those of root count as
    ours; so does a group that has only its user, as `umask 002` makes on many systems.

    Raises:
        UsageError: It can be written by others.
    """
    cache = cache_folder()
    above = [each for each in folder.parents if each == cache or cache in each.parents]
    try:
        for path in (*above, folder, *sorted(folder.iterdir())):
            if not _is_ours(path.lstat()):
                hint = f"Remove it, or set {VARIABLE} to a folder of your own."
                problem = "can be written by other users, and what is in it would be run"
                raise UsageError([Fault(key=VARIABLE, found=str(path), problem=problem, hint=hint)])
    except (FileNotFoundError, NotADirectoryError):
        return


def _is_ours(found: os.stat_result) -> bool:
    if found.st_uid not in (os.getuid(), 0):
        return False
    if stat.S_ISLNK(found.st_mode):
        return True
    own_group = found.st_gid in (os.getuid(), 0)
    return not found.st_mode & stat.S_IWOTH and (own_group or not found.st_mode & stat.S_IWGRP)


_TIMEOUT_S = 600


class CompilerError(ProfilerError):
    """A compiler is missing, or could not build a library."""


def require_compilers() -> None:
    """Check that gcc, g++ and binutils are there.

    Raises:
        CompilerError: One is missing.
    """
    missing = [name for name in ("gcc", "g++", "nm", "readelf") if shutil.which(name) is None]
    if missing:
        raise CompilerError(
            f"{', '.join(missing)} not found: the emulated driver is compiled once per installed torch. "
            "Install gcc and g++ (Debian and Ubuntu: apt-get install build-essential)."
        )


def compile_library(compiler: str, target: Path, sources: Sequence[Path], options: Sequence[str]) -> None:
    """Compile one shared library.

    Raises:
        CompilerError: The compiler failed; the sentence has its first error.
    """
    command = [compiler, "-O2", "-fPIC", "-shared", "-w", "-o", str(target), *map(str, sources), *options]
    try:
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise CompilerError(f"{compiler} did not finish {target.name} within {_TIMEOUT_S} s.") from error
    except OSError as error:
        raise CompilerError(f"{compiler} could not be started ({error.strerror or error}).") from error
    except subprocess.CalledProcessError as error:
        raise CompilerError(f"{compiler} could not build {target.name}: {first_error(error.stderr)}") from error


def first_error(output: str) -> str:
    """Return the first line of a compiler's output that names an error."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    named = [line for line in lines if "error" in line or "undefined" in line]
    return (named or lines or ["it gave no reason"])[0]


DESCRIPTION = "built.json"
"""File of a built folder: torch, and the libraries to load before it. Written last."""

_CUDNN_WHEEL = re.compile(r"nvidia-cudnn-cu\d+==(\d+)\.(\d+)\.(\d+)")
_NCCL_WHEEL = re.compile(r"nvidia-nccl-cu\d+==(\d+)\.(\d+)\.(\d+)")


def libraries_of(interpreter: Interpreter, *, folder: Path | None = None) -> Path:
    """Return the folder of the emulated libraries for an installed torch; build them if they are missing.

    Two processes that ask at the same time build once. A build that is interrupted leaves nothing behind that is used.

    Args:
        interpreter: Whose torch.
        folder: Where built libraries are kept; by default the cache folder.

    Raises:
        ProfilerError: A compiler is missing or fails, the folder cannot be written, or others can write to it.
    """
    folder = folder or libraries_folder()
    files = compiled_files(interpreter.torch_folder, interpreter.search_path)
    target = folder / cache_key(interpreter, files)
    refuse_of_others(target)
    if (target / DESCRIPTION).exists():
        return target
    require_compilers()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with alone(folder / f"{target.name}.lock", "builds the emulated libraries"):
            if not (target / DESCRIPTION).exists():
                _build_aside(interpreter, files, target)
    except OSError as error:
        raise ProfilerError(
            f"{target}: the emulated libraries could not be kept ({error.strerror or error})."
        ) from error
    return target


def cache_key(interpreter: Interpreter, files: Iterable[Path]) -> str:
    """Return the name of the folder: the version of torch, and a hash of the sources and of what they are built for."""
    digest = hashlib.sha256()
    folders = (interpreter.site_packages, *interpreter.search_path)
    for source in every_source():
        digest.update(f"{source.parent.name}/{source.name}\n".encode() + source.read_bytes())
    digest.update(f"{interpreter.torch} {interpreter.commit} {interpreter.cuda}\n".encode())
    for path in files:
        # The compiled files have up to 1 GB: with the commit of torch, name and size say which ones they are.
        digest.update(f"{_within(path, folders)} {path.stat().st_size}\n".encode())
    return f"torch-{interpreter.torch}-{digest.hexdigest()[:16]}"


def _within(path: Path, folders: Iterable[Path]) -> Path:
    """Return the path below the first folder that it is in."""
    return next(path.relative_to(folder) for folder in folders if path.is_relative_to(folder))


def _build_aside(interpreter: Interpreter, files: Iterable[Path], target: Path) -> None:
    """Build in a new folder and rename it when it is complete."""
    shutil.rmtree(target, ignore_errors=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        _build(interpreter, files, aside)
        aside.rename(target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _build(interpreter: Interpreter, files: Iterable[Path], folder: Path) -> None:
    expected = expected_libraries(files)
    builder = LibraryBuilder(folder=folder, defines=defines(interpreter))
    builder.core()
    for library in expected.values():
        builder.vendor(library)
    (folder / "libcuda.so").symlink_to(expected["cuda"].file)
    builder.values(interpreter.torch_folder)
    # libcuda and NVML are opened by name while a program runs; the others are what torch's files are linked with.
    loaded = [library.file for name, library in sorted(expected.items()) if name not in ("cuda", "nvidia-ml")]
    described = {
        "torch": interpreter.torch,
        "cuda": interpreter.cuda,
        "card": CORE_LIBRARY,
        "load": loaded,
        "values": VALUES_LIBRARY,
    }
    (folder / DESCRIPTION).write_text(json.dumps(described, indent=1) + "\n")


def defines(interpreter: Interpreter) -> Mapping[str, int]:
    """Return the versions that the libraries report: those for which torch was built."""
    major, minor = (int(part) for part in interpreter.cuda.split(".")[:2])
    cudnn, nccl = (_required_version(pattern, interpreter.requires) for pattern in (_CUDNN_WHEEL, _NCCL_WHEEL))
    return {
        "CUDA_VERSION": major * 1000 + minor * 10,
        "CUDNN_VERSION": cudnn[0] * 10_000 + cudnn[1] * 100 + cudnn[2],
        "NCCL_VERSION": nccl[0] * 10_000 + nccl[1] * 100 + nccl[2],
    }


def _required_version(pattern: re.Pattern[str], requires: Iterable[str]) -> tuple[int, int, int]:
    """Return the version of a library that torch requires; torch's own check is the reason to report the same one."""
    for line in requires:
        if match := pattern.match(line):
            return int(match[1]), int(match[2]), int(match[3])
    raise ProfilerError(
        f"The installed torch does not say which version of {pattern.pattern.split('-')[1]} it requires."
    )


@dataclass(frozen=True, kw_only=True)
class LibraryBuilder:
    """Compiles libraries into one folder."""

    folder: Path
    defines: Mapping[str, int]

    def core(self) -> None:
        """Build the card."""
        sources = [driver_folder() / name for name in CORE_SOURCES]
        compile_library("gcc", self.folder / CORE_LIBRARY, sources, [*self._options(CORE_LIBRARY), "-lpthread", "-ldl"])

    def vendor(self, library: ExpectedLibrary) -> None:
        """Build one library of the vendor: generated answers, replaced where one is written by hand."""
        work = self.folder / "generated"
        work.mkdir(exist_ok=True)
        generated = work / f"{library.name}.c"
        generated.write_text(generated_answers(library.name, library.entry_points, seen_entry_points()))
        options = [*self._options(library.file), f"-l:{CORE_LIBRARY}", "-ldl", "-lpthread"]
        if script := version_script(library.entry_points.values()):
            path = work / f"{library.name}.map"
            path.write_text(script)
            options.append(f"-Wl,--version-script={path}")
        sources = [generated, *(driver_folder() / name for name in ANSWERS.get(library.name, ()))]
        compile_library("gcc", self.folder / library.file, sources, options)

    def values(self, torch_folder: Path) -> None:
        """Build the values of small tensors, with torch's headers."""
        include = torch_folder / "include"
        options = [
            "-std=c++20",
            f"-I{include}",
            f"-I{include / 'torch/csrc/api/include'}",
            f"-L{torch_folder / 'lib'}",
            *self._options(VALUES_LIBRARY),
            "-ltorch_cpu",
            "-lc10",
            f"-l:{CORE_LIBRARY}",
            "-ldl",
        ]
        compile_library(
            "g++", self.folder / VALUES_LIBRARY, [driver_folder() / name for name in VALUES_SOURCES], options
        )

    def _options(self, file: str) -> list[str]:
        return [
            *(f"-D{name}={value}" for name, value in self.defines.items()),
            f"-I{driver_folder()}",
            f"-L{self.folder}",
            "-Wl,-rpath,$ORIGIN",
            f"-Wl,-soname,{file}",
        ]


PYTHON_VARIABLE = "EMULATION_PYTHON"
"""Environment variable: the interpreter of an environment with a CUDA build of torch."""

COMPLETE = "emulation-complete"
"""File of an environment, written when its installation has finished."""

TRIALS = "torch-"
"""Beginning of the names of environments in which trials run; others have the packages of a file of requirements."""


def installed_environment(environment: Mapping[str, str] | None = None) -> Path:
    """Return the interpreter that `PYTHON_VARIABLE` names, or that of the environment that was installed last.

    Raises:
        UsageError: There is none, or other users can write to it.
    """
    found = os.environ if environment is None else environment
    if given := found.get(PYTHON_VARIABLE):
        return Path(given).expanduser()
    complete = sorted(environments_folder(found).glob(f"{TRIALS}*/{COMPLETE}"), key=lambda path: path.stat().st_mtime)
    if not complete:
        raise UsageError(
            [
                Fault(
                    key="python",
                    found="none",
                    problem="no environment with a CUDA build of torch was found",
                    hint=f"Run python -m profiler.emulation install, or set {PYTHON_VARIABLE} to an interpreter.",
                )
            ]
        )
    refuse_of_others(complete[-1].parent / "bin")
    return interpreter_in(complete[-1].parent)


def interpreter_in(folder: Path) -> Path:
    """Return the interpreter of an environment."""
    return folder / "bin" / "python"
