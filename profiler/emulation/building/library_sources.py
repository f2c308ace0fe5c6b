"""What each emulated library is built from, and the names that an installed torch expects of it."""

import hashlib
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from profiler.domain.errors import ProfilerError
from profiler.emulation.interpreter import cache_folder

VENDOR_LIBRARIES = (
    "cublas",
    "cublasLt",
    "cuda",
    "cudart",
    "cudnn",
    "cufft",
    "cufile",
    "cupti",
    "curand",
    "cusolver",
    "cusparse",
    "cusparseLt",
    "nccl",
    "nvJitLink",
    "nvToolsExt",
    "nvidia-ml",
    "nvrtc",
    "nvshmem_host",
)
"""Names of the libraries, without ``lib`` and ``.so``."""

_PREFIXES = (
    ("nccl", "nccl"),
    ("cusparseLt", "cusparseLt"),
    ("nvshmem", "nvshmem_host"),
    ("cuFile", "cufile"),
    ("nvrtc", "nvrtc"),
    ("nvtx", "nvToolsExt"),
    ("cupti", "cupti"),
    ("nvml", "nvidia-ml"),
    ("nvJitLink", "nvJitLink"),
    ("cublasLt", "cublasLt"),
    ("cublas", "cublas"),
    ("cudnn", "cudnn"),
    ("cusolver", "cusolver"),
    ("cusparse", "cusparse"),
    ("curand", "curand"),
    ("cufft", "cufft"),
    ("__cuda", "cudart"),
    ("cuda", "cudart"),
)
"""Library of a name that has no version, by its beginning; the first that matches."""

_VENDOR_NAME = re.compile(r"_?_?(cu[A-Za-z]|nccl|nvshmem|nvrtc|nvtx|nvml|nvJitLink)\w*")
_DRIVER_NAME = re.compile(r"cu[A-Z]")
_NEEDED = re.compile(r"\(NEEDED\).*\[(.+)\]")
_VENDOR_FILE = re.compile(rf"lib({'|'.join(map(re.escape, VENDOR_LIBRARIES))})\.so(?:\.\d+)*")

_PACKAGES_WITH_CUDA = (
    "bitsandbytes",
    "deepspeed",
    "flash_attn",
    "torchao",
    "torchaudio",
    "torchvision",
    "vllm",
    "xformers",
)
"""Packages whose compiled files use the vendor's libraries as well."""


@dataclass
class ExpectedLibrary:
    """One library of the vendor, as torch's files expect it."""

    name: str
    """Such as ``"cudart"``."""
    file: str
    """Such as ``"libcudart.so.13"``."""
    entry_points: dict[str, str] = field(default_factory=dict)
    """Version of the symbol by its name; empty if it has none."""


def compiled_files(torch_folder: Path, search_path: Iterable[Path]) -> list[Path]:
    """Return the compiled files of torch, and of installed packages that use CUDA as well.

    Args:
        torch_folder: That of the installed torch.
        search_path: Folders in which the other packages are looked for; the first that has a package decides.
    """
    files = sorted((torch_folder / "lib").glob("*.so"))
    folders = [path for path in search_path if path.is_dir()]
    for package in _PACKAGES_WITH_CUDA:
        found = next((path / package for path in folders if (path / package).is_dir()), None)
        files += sorted(found.rglob("*.so")) if found else []
    return files


def expected_libraries(files: Iterable[Path]) -> dict[str, ExpectedLibrary]:
    """Return the vendor's libraries that compiled files need, by name, with the entry points left undefined in them.

    A file of another major version of CUDA than the first files' (those of torch) is left out.
    """
    found: dict[str, ExpectedLibrary] = {}
    for path in files:
        needed = _vendor_files(_run("readelf", "--wide", "--dynamic", str(path)))
        if any(name in found and found[name].file != file for name, file in needed.items()):
            continue
        for name, file in needed.items():
            found.setdefault(name, ExpectedLibrary(name=name, file=file))
        for symbol, version in undefined_names(_run("nm", "--dynamic", "--undefined-only", str(path))).items():
            library = library_of(symbol, version)
            if library:
                found.setdefault(library, ExpectedLibrary(name=library, file="")).entry_points[symbol] = version
    _name_driver_files(found)
    return {name: library for name, library in found.items() if library.file}


def undefined_names(listing: str) -> dict[str, str]:
    """Read the output of nm: the vendor's names, with the version of each symbol or an empty text."""
    found = {}
    for line in listing.splitlines():
        symbol, _, version = line.split()[-1].partition("@")
        if _VENDOR_NAME.fullmatch(symbol):
            found[symbol] = version.lstrip("@")
    return found


def library_of(symbol: str, version: str) -> str | None:
    """Return the vendor's library of a name; None if it is none of theirs."""
    if match := _VENDOR_FILE.fullmatch(version):
        return match[1]
    if _DRIVER_NAME.match(symbol) and not symbol.startswith("cuFile"):
        return "cuda"
    return next((library for prefix, library in _PREFIXES if symbol.startswith(prefix)), None)


def _vendor_files(listing: str) -> dict[str, str]:
    """Read the output of readelf: the vendor's files that are needed, by library."""
    matches = (_VENDOR_FILE.fullmatch(name) for name in _NEEDED.findall(listing))
    return {match[1]: match[0] for match in matches if match}


def _name_driver_files(found: dict[str, ExpectedLibrary]) -> None:
    """Name the two libraries that torch and pynvml open while they run."""
    for name in ("cuda", "nvidia-ml"):
        library = found.setdefault(name, ExpectedLibrary(name=name, file=""))
        library.file = f"lib{name}.so.1"


def _run(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError as error:
        raise ProfilerError(
            f"{command[0]} was not found: install binutils, gcc and g++ to build the driver."
        ) from error
    except subprocess.CalledProcessError as error:
        raise ProfilerError(f"{command[0]} could not read {command[-1]}: {error.stderr.strip()}") from error


def named(libraries: Mapping[str, ExpectedLibrary]) -> dict[str, list[str]]:
    """Return the sorted entry points of each library."""
    return {name: sorted(library.entry_points) for name, library in sorted(libraries.items())}


def driver_folder() -> Path:
    """Return the folder with the driver's sources."""
    return packed_folder("driver")


@cache
def packed_folder(name: str) -> Path:
    """Return a folder of the emulation: that of a clone, or what a wheel has packed (`hatch_build.py`)."""
    folder = Path(__file__).parents[1] / name
    packed = folder.with_suffix(".tar.xz")
    return unpacked(packed) / name if packed.exists() else folder


def unpacked(packed: Path) -> Path:
    """Return the folder with the content of an archive, in the cache folder."""
    target = cache_folder() / "driver_sources" / hashlib.sha256(packed.read_bytes()).hexdigest()[:16]
    if not target.exists():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError:  # a user without a home: once per process
            target = Path(tempfile.mkdtemp()) / target.name
        aside = Path(tempfile.mkdtemp(dir=target.parent))
        with tarfile.open(packed) as archive:
            for member in archive:
                content = archive.extractfile(member)
                assert content is not None  # there are files alone
                path = aside / member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.read())
        with suppress(OSError):  # another process was faster
            aside.rename(target)
        shutil.rmtree(aside, ignore_errors=True)
    return target


CORE_LIBRARY = "libemulatedcard.so"
"""The card, its memory and its streams; every emulated library is linked with it."""

CORE_SOURCES = (
    "card.c",
    "memory.c",
    "known_bytes.c",
    "processes.c",
    "course.c",
    "sharing.c",
    "streams.c",
    "marks.c",
    "torch_counts.c",
)

VALUES_LIBRARY = "libemulatedvalues.so"
"""Values of small tensors; compiled with torch's headers."""

VALUES_SOURCES = ("values/tensors.cpp", "values/operators.cpp")

ANSWERS: Mapping[str, tuple[str, ...]] = {
    "cudart": ("runtime_devices.c", "runtime_memory.c", "runtime_streams.c", "runtime_kernels.c"),
    "cuda": ("driver_api.c", "virtual_memory.c"),
    "nvidia-ml": ("nvml.c",),
    "nccl": ("nccl.c", "groups.c", "exchange.c", "channels.c", "reductions.c"),
    "cublas": ("cublas.c",),
    "cublasLt": ("cublaslt.c",),
    "cudnn": ("cudnn.c",),
    "cupti": ("cupti.c",),
    "nvrtc": ("nvrtc.c",),
}
"""Files of answers that are written by hand, by library of the vendor."""

_SEEN = "answered_with_success.txt"
"""File of the driver's sources: names that were looked at, with success or a handle as an answer for each of them."""

_HANDLES = ": handles"
"""Ends the heading of names that make an object."""


def every_source() -> list[Path]:
    """Return each file that decides what is built, in a fixed order: also this module and the one that builds."""
    builders = [Path(__file__).with_name(name) for name in ("build.py", "library_sources.py", "library_sources.py")]
    return sorted(path for path in driver_folder().rglob("*") if path.suffix in (".c", ".cpp", ".h", ".txt")) + builders


def generated_answers(library: str, expected: Iterable[str], seen: Mapping[str, Collection[str]]) -> str:
    """Return C for every name that torch expects: success or a handle where it was looked at, a refusal otherwise.

    Each is weak, so that an answer that is written by hand replaces it.

    Args:
        library: Name of the vendor's library.
        expected: Names that torch leaves undefined.
        seen: Names that were looked at, by heading of the file.
    """
    succeed, handles = seen.get(library, ()), seen.get(f"{library}{_HANDLES}", ())
    lines = ["int em_unseen(const char *library, const char *name);"]
    for name in sorted({*expected, *succeed, *handles}):
        if name in handles:
            body = f"{name}(void **handle) {{ *handle = (void *)64; return 0; }}"
        elif name in succeed:
            body = f"{name}(void) {{ return 0; }}"
        else:
            body = f'{name}(void) {{ return em_unseen("lib{library}", "{name}"); }}'
        lines.append(f"__attribute__((weak)) int {body}")
    return "\n".join(lines) + "\n"


def version_script(versions: Iterable[str]) -> str:
    """Return the linker's script that gives every symbol its version; empty if there is none."""
    named = sorted({version for version in versions if version})
    return f"{named[0]} {{ *; }};\n" if named else ""


@cache
def seen_entry_points() -> Mapping[str, frozenset[str]]:
    """Return the names that were looked at, by heading of the file."""
    return read_seen((driver_folder() / _SEEN).read_text())


def read_seen(text: str) -> dict[str, frozenset[str]]:
    """Read lines of names under headings ``[library]``; ``#`` begins a comment."""
    found: dict[str, set[str]] = {}
    library = ""
    for line in (line.partition("#")[0].strip() for line in text.splitlines()):
        if heading := re.fullmatch(r"\[(.+)\]", line):
            library = heading[1]
            found.setdefault(library, set())
        elif line:
            found[library] |= set(line.split())
    return {name: frozenset(names) for name, names in found.items()}
