"""What an emulated process needs before its program imports torch."""

import ctypes
import json
from collections.abc import Mapping
from pathlib import Path

from profiler.emulation.inside.lone_rank import answer_for_other_ranks, join_groups_alone
from profiler.emulation.inside.runtime_library import RUNTIME, find_emulated_runtime
from profiler.emulation.inside.triton_kernels import note_compiled_launches, note_launches
from profiler.seams.import_hooks import around_import


def prepare(environment: Mapping[str, str]) -> None:
    """Register what happens around the imports of the program."""
    libraries = Path(environment["EMULATED_LIBRARIES"])
    built = json.loads((libraries / "built.json").read_text())
    card = ctypes.CDLL(str(libraries / built["card"]), mode=ctypes.RTLD_GLOBAL)
    around_import("torch", before=lambda: _load(libraries, built["load"]))
    if environment.get("EMULATED_VALUES") != "0":
        around_import("torch", after=lambda _torch: _install_values(libraries / built["values"]))
    around_import("triton.runtime.jit", after=note_launches(card))
    around_import("torch._inductor.runtime.triton_heuristics", after=note_compiled_launches(card))
    runtime = next(name for name in built["load"] if name.startswith(f"{RUNTIME}."))
    around_import(
        "vllm.distributed.device_communicators.cuda_wrapper", after=find_emulated_runtime(libraries / runtime)
    )
    if int(environment.get("WORLD_SIZE") or 1) > 1:
        around_import("torch.distributed.rendezvous", after=answer_for_other_ranks)
        around_import("torch.distributed.distributed_c10d", after=join_groups_alone)


def _load(libraries: Path, names: list[str]) -> None:
    """Load the emulated libraries, so that torch finds these even if the vendor's are installed."""
    for name in names:
        ctypes.CDLL(str(libraries / name), mode=ctypes.RTLD_GLOBAL)


def _install_values(path: Path) -> None:
    ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL).emulated_values_install()
