"""A small emulated driver for tests: the card and a few libraries, compiled once per session."""

import json
import os
import subprocess
import sys
from pathlib import Path

from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.emulation.building.build import LibraryBuilder
from profiler.emulation.building.library_sources import ExpectedLibrary
from profiler.emulation.card import card_description

LIBRARIES = {
    "cudart": "libcudart.so.13",
    "cuda": "libcuda.so.1",
    "nvidia-ml": "libnvidia-ml.so.1",
    "nccl": "libnccl.so.2",
}
DEFINES = {"CUDA_VERSION": 13000, "CUDNN_VERSION": 92000, "NCCL_VERSION": 22907}
NEW = "cudaNeverSeenBefore"
"""An entry point that no version of the emulation has an answer for."""


def build_driver(folder: Path) -> Path:
    """Compile the card, the runtime, the driver, NVML and NCCL; a few seconds."""
    builder = LibraryBuilder(folder=folder, defines=DEFINES)
    builder.core()
    for name, file in LIBRARIES.items():
        symbols = {NEW: "", "cudaProfilerStart": ""} if name == "cudart" else {}
        builder.vendor(ExpectedLibrary(name=name, file=file, entry_points=symbols))
    return folder


def run_on_card(folder: Path, program: str, *, gpu: str = "t4-16gb", check: bool = True, **variables: str):
    """Run a program of ctypes on the card: `rt`, `cu`, `nvml`, `nccl` and `card` are its libraries."""
    loads = "\n".join(
        f"{name} = ctypes.CDLL({str(folder / file)!r}, mode=ctypes.RTLD_GLOBAL)"
        for name, file in (
            ("card", "libemulatedcard.so"),
            ("rt", LIBRARIES["cudart"]),
            ("cu", LIBRARIES["cuda"]),
            ("nvml", LIBRARIES["nvidia-ml"]),
            ("nccl", LIBRARIES["nccl"]),
        )
    )
    source = f"import ctypes, json\nfrom ctypes import byref, c_int, c_size_t, c_uint, c_void_p\n{loads}\n{program}"
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    environment |= {
        "EMULATED_CARD": card_description(KNOWN_GPUS[gpu]),
        "LD_LIBRARY_PATH": str(folder),
        "EMULATED_PROCESSES": str(folder / "processes"),
        **variables,
    }
    done = subprocess.run(
        [sys.executable, "-c", source], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    if not check:
        return done
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
