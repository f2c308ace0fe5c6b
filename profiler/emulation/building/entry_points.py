"""The names that an installed torch expects of the vendor's libraries, read from its compiled files."""

import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from profiler.domain.errors import ProfilerError

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


def compiled_files(site_packages: Path) -> list[Path]:
    """Return the compiled files of torch, and of installed packages that use CUDA as well."""
    files = sorted((site_packages / "torch" / "lib").glob("*.so"))
    for package in _PACKAGES_WITH_CUDA:
        files += sorted((site_packages / package).rglob("*.so"))
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
