"""What an emulated process never uses of an environment, taken out of it: kernels, symbols for debuggers, profilers.

Only environments that `install` made are touched.
"""

import ctypes
import os
import re
import subprocess
from pathlib import Path

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
