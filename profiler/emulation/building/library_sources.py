"""What each emulated library is built from: answers written by hand, and generated ones for the other entry points."""

import re
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path

DRIVER_FOLDER = Path(__file__).parents[1] / "driver"

CORE_LIBRARY = "libemulatedcard.so"
"""The card, its memory and its streams; every emulated library is linked with it."""

CORE_SOURCES = ("card.c", "memory.c", "known_bytes.c", "processes.c", "streams.c", "marks.c")

VALUES_LIBRARY = "libemulatedvalues.so"
"""Values of small tensors; compiled with torch's headers."""

VALUES_SOURCES = ("values/tensors.cpp", "values/operators.cpp")

ANSWERS: Mapping[str, tuple[str, ...]] = {
    "cudart": ("runtime_devices.c", "runtime_memory.c", "runtime_streams.c", "runtime_kernels.c"),
    "cuda": ("driver_api.c", "virtual_memory.c"),
    "nvidia-ml": ("nvml.c",),
    "nccl": ("nccl.c",),
    "cublas": ("cublas.c",),
    "cublasLt": ("cublaslt.c",),
    "cudnn": ("cudnn.c",),
    "cupti": ("cupti.c",),
    "nvrtc": ("nvrtc.c",),
}
"""Files of answers that are written by hand, by library of the vendor."""

_SEEN = "answered_with_success.txt"
"""File of `DRIVER_FOLDER`: names that were looked at, with success or a handle as an answer for each of them."""

_HANDLES = ": handles"
"""Ends the heading of names that make an object."""


def every_source() -> list[Path]:
    """Return each file that decides what is built, in a fixed order: also this module and the one that builds."""
    builders = [Path(__file__).with_name(name) for name in ("build.py", "library_sources.py", "entry_points.py")]
    return sorted(path for path in DRIVER_FOLDER.rglob("*") if path.suffix in (".c", ".cpp", ".h", ".txt")) + builders


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
    return read_seen((DRIVER_FOLDER / _SEEN).read_text())


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
