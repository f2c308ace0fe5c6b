"""Starting a process on an emulated card, when a program is refused, and a check of the card."""

import ctypes
import json
import os
import secrets
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from profiler.domain.cards.gpu import Gpu
from profiler.domain.errors import Fault, ProfilerError, UsageError
from profiler.domain.machines.extras import safe_path_flags
from profiler.emulation.building.build import installed_environment, libraries_of
from profiler.emulation.building.library_sources import packed_folder
from profiler.emulation.card import (
    FILE_VARIABLE,
    PROCESSES_VARIABLE,
    RANKS_POSSIBLE,
    RANKS_RUN,
    STEPS_VARIABLE,
    card_description,
    processes_folder,
)
from profiler.emulation.installing import startable
from profiler.emulation.interpreter import TRIED_TORCH, Interpreter


def refuse(interpreter: Interpreter, *, strict: bool) -> None:
    """Refuse an environment whose figures would be wrong, or were never looked at.

    Raises:
        UsageError: Triton is missing; or `strict` and this minor version of torch was never tried.
    """
    where = str(interpreter.executable)
    if not interpreter.has_triton:
        problem = "has no triton, without which libraries take other paths and their figures are wrong"
        hint = f"Run {where} -m pip install triton."
        raise UsageError([Fault(key="python", found=where, problem=problem, hint=hint)])
    if strict and interpreter.torch_minor not in TRIED_TORCH:
        problem = f"has torch {interpreter.torch}, and the emulation was tried with {', '.join(TRIED_TORCH)} only"
        raise UsageError([Fault(key="python", found=where, problem=problem, hint="strict=false goes on.")])


def refuse_real_driver(environment: Mapping[str, str] | None = None) -> None:
    """Refuse to emulate where a real NVIDIA driver is.

    Raises:
        UsageError: The driver's library can be opened, and the user did not ask for the emulation all the same.
    """
    found = os.environ if environment is None else environment
    if has_real_driver() and found.get(ALLOW_VARIABLE) != "1":
        raise UsageError(
            [
                Fault(
                    key="backend",
                    found="emulated",
                    problem="a real NVIDIA driver is present, with which figures can be measured",
                    hint=f"Use backend=cuda, or set {ALLOW_VARIABLE}=1 to emulate all the same.",
                )
            ]
        )


ALLOW_VARIABLE = "GRPO_VRAM_EMULATE_ANYWAY"
"""Environment variable: 1 to emulate although a real driver is present."""


def has_real_driver() -> bool:
    """Whether the library of a real driver can be opened in this process."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return not hasattr(library, "em_card")


STARTUP_FOLDER = Path(__file__).parent / "startup"
"""On the path of an emulated process: its `sitecustomize.py` prepares torch."""

_PACKAGE_FOLDER = Path(__file__).parents[1]

PROFILER_VARIABLE = "EMULATED_PROFILER"
"""Environment variable with the folder of the package `profiler`, for `STARTUP_FOLDER`."""

_STRICT = "EMULATED_STRICT"

_OF_A_JOB = {"EMULATED_SHARED": "1", "EMULATED_KEPT": "1", "EMULATED_ALL_RANKS": "1"}
"""Processes share the cards, what they held is read after their end, and every rank is a process."""

_REPORTS = ("DO_NOT_TRACK", "HF_HUB_DISABLE_TELEMETRY", "VLLM_NO_USAGE_STATS")
_UNREPORTED = {"RAY_USAGE_STATS_ENABLED": "0"} | dict.fromkeys(_REPORTS, "1")
"""Statistics of axolotl, trl, Ray and vLLM would count a card that does not exist."""

_RAY_TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE")
"""Without any of them Ray writes a token of its own into the user's home, and it stays there."""

_RAY_RESOURCES = "RAY_OVERRIDE_RESOURCES"
_CPUS_PER_CARD = 24
"""Of rented machines with such cards (eight H100 come with 192 to 208 virtual CPUs). Programs of Ray ask for three and
more per card and wait for ever where the machine has fewer; on an emulated machine they share those that there are."""

_OF_A_PYTHON = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")

_UNSET = ("CUDA_VISIBLE_DEVICES", "CUDA_HOME", "LD_PRELOAD", "NVIDIA_VISIBLE_DEVICES", "PYTHONHOME", "VIRTUAL_ENV")
"""Variables of the caller that would change what an emulated process sees."""


class Events(StrEnum):
    """When an event on an emulated card counts as reached. A real card is between the two."""

    EARLY = "early"
    """At once."""
    LATE = "late"
    """When host and card have met."""


@dataclass(frozen=True, kw_only=True)
class EmulatedPython:
    """A Python with torch's CUDA build, and the emulated libraries for it."""

    executable: Path
    torch: str
    """Version of torch, such as ``"2.13.0+cu130"``."""
    cuda: str
    """Version of CUDA that torch was built for."""
    libraries: Path
    """Folder of the emulated libraries."""


def emulated_python(executable: Path | None = None, *, strict: bool = True) -> EmulatedPython:
    """Return a Python that can run on an emulated card, with its libraries built.

    Args:
        executable: Interpreter of an environment with a CUDA build of torch. By default the environment that
            `python -m profiler.emulation install` made, or the one that EMULATION_PYTHON names.
        strict: Refuse a minor version of torch that was never tried.

    Raises:
        UsageError: There is none, it cannot be used, or a real driver is present.
        ProfilerError: The libraries cannot be built.
    """
    refuse_real_driver()
    interpreter = startable((executable or installed_environment()).absolute())
    refuse(interpreter, strict=strict)
    return EmulatedPython(
        executable=interpreter.executable,
        torch=interpreter.torch,
        cuda=interpreter.cuda,
        libraries=libraries_of(interpreter),
    )


def profiler_environment(executable: Path, *, base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process of another Python that finds this profiler, and nothing else of ours.

    Args:
        executable: Interpreter that the process runs.
        base: Environment of the caller, usually `os.environ`. What is for the caller's own Python is left out.
    """
    found = {name: value for name, value in base.items() if name not in _OF_A_PYTHON}
    return found | {
        "PATH": _joined(str(executable.parent), base.get("PATH")),
        "PYTHONPATH": str(STARTUP_FOLDER),
        PROFILER_VARIABLE: str(_PACKAGE_FOLDER),
    }


def process_environment(
    python: EmulatedPython,
    gpu: Gpu,
    *,
    cards: int = 1,
    num_processes: int | None = None,
    base: Mapping[str, str],
    events: Events = Events.EARLY,
    strict: bool = True,
) -> dict[str, str]:
    """Return the whole environment of a process on emulated cards.

    Args:
        python: Interpreter that the process runs.
        gpu: The card.
        cards: Number of cards of the machine.
        num_processes: Number of ranks of a distributed job, of which the process is rank 0; the others are taken to
            hold what it holds. The machine has at least as many cards. None for a process without a launcher.
        base: Environment of the caller, usually `os.environ`.
        events: When events count as reached.
        strict: End the process when it calls an entry point of the driver that has no answer.
    """
    found = {name: value for name, value in base.items() if name not in _UNSET}
    found |= _UNREPORTED | {
        "EMULATED_CARD": card_description(gpu),
        "EMULATED_CARDS": str(max(cards, num_processes or 1)),
        "EMULATED_EVENTS": events.value,
        "EMULATED_INSIDE": str(packed_folder("inside").parent),
        "EMULATED_LIBRARIES": str(python.libraries),
        PROCESSES_VARIABLE: base.get(PROCESSES_VARIABLE) or processes_folder(),
        "LD_LIBRARY_PATH": _joined(str(python.libraries), base.get("LD_LIBRARY_PATH")),
        "PATH": _joined(str(python.executable.parent), base.get("PATH")),
        "PYTHONPATH": _joined(str(STARTUP_FOLDER), base.get("PYTHONPATH")),
        PROFILER_VARIABLE: str(_PACKAGE_FOLDER),
        "TRITON_LIBCUDA_PATH": str(python.libraries),
    }
    if strict:
        found[_STRICT] = "1"
    if num_processes is not None:
        found |= _distributed(num_processes)
    return found


def job_environment(
    python: EmulatedPython,
    gpu: Gpu,
    *,
    cards: int,
    base: Mapping[str, str],
    folder: Path,
    ranks: int | None = None,
    possible: int = 0,
    steps: int | None = None,
    strict: bool = True,
) -> dict[str, str]:
    """Return the environment of a command whose processes, however they are started, share the cards of one machine.

    Args:
        python: Its Python comes first on the path.
        gpu: The card.
        cards: Number of cards of the machine.
        base: Environment of the caller.
        folder: Where the processes say what they hold, and what the host read (`job_of`, `marks_of_file`).
        ranks: How many workers of each group of equal ones run; None chooses.
        possible: How many workers the machine holds; of groups with more those of one engine run. 0 runs all.
        steps: Optimizer steps after which a process that trains ends; None for no end.
        strict: As in `process_environment`.
    """
    own = {name: value for name, value in base.items() if name not in _OF_A_RANK} | {PROCESSES_VARIABLE: str(folder)}
    found = process_environment(python, gpu, cards=cards, base=own, strict=strict)
    if not any(found.get(name) for name in _RAY_TOKENS):
        found[_RAY_TOKENS[0]] = secrets.token_hex(32)
    found.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")  # nvcc would compile it, where it is installed
    found.setdefault(_RAY_RESOURCES, json.dumps({"CPU": max(os.cpu_count() or 1, _CPUS_PER_CARD * cards)}))
    run = {RANKS_POSSIBLE: str(possible)} if ranks is None else {RANKS_RUN: str(ranks)}
    run |= {} if steps is None else {STEPS_VARIABLE: str(steps)}
    return found | _OF_A_JOB | run | {FILE_VARIABLE: str(folder / MARKS)}


def write_nvidia_smi(folder: Path, python: EmulatedPython) -> None:
    """Write the program `nvidia-smi` of an emulated machine into a folder of the path."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "nvidia-smi"
    program.write_text(f"#!{python.executable} -I\n{_NVIDIA_SMI}")
    program.chmod(0o755)


_NVIDIA_SMI = """
import ctypes, sys
nvml = ctypes.CDLL("libnvidia-ml.so.1")
class Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]
class Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("bytes", ctypes.c_ulonglong), ("gi", ctypes.c_uint), ("ci", ctypes.c_uint)]
def text(function, *before):
    found = ctypes.create_string_buffer(96); getattr(nvml, function)(*before, found, 96); return found.value.decode()
nvml.nvmlInit_v2(); count = ctypes.c_uint(); nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
cards, apps = [], []
for index in range(count.value):
    card, memory, major, minor = ctypes.c_void_p(), Memory(), ctypes.c_int(), ctypes.c_int()
    nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(card))
    nvml.nvmlDeviceGetMemoryInfo(card, ctypes.byref(memory))
    nvml.nvmlDeviceGetCudaComputeCapability(card, ctypes.byref(major), ctypes.byref(minor))
    cards.append({"index": str(index), "count": str(count.value), "name": text("nvmlDeviceGetName", card),
        "gpu_name": text("nvmlDeviceGetName", card), "uuid": text("nvmlDeviceGetUUID", card),
        "gpu_uuid": text("nvmlDeviceGetUUID", card), "driver_version": text("nvmlSystemGetDriverVersion"),
        "compute_cap": f"{major.value}.{minor.value}", "utilization.gpu": "0 %", "temperature.gpu": "30",
        **{f"memory.{name}": f"{getattr(memory, name) >> 20} MiB" for name in ("total", "free", "used")}})
    held, found = ctypes.c_uint(64), (Process * 64)()
    nvml.nvmlDeviceGetComputeRunningProcesses_v3(card, ctypes.byref(held), found)
    apps += [{"pid": str(one.pid), "used_memory": f"{one.bytes >> 20} MiB", "used_gpu_memory": f"{one.bytes >> 20} MiB",
        "gpu_uuid": cards[-1]["uuid"], "gpu_name": cards[-1]["name"]} for one in found[:held.value]]
asked = dict(word.lstrip("-").partition("=")[::2] for word in sys.argv[1:])
rows = {"query-gpu": cards, "query-compute-apps": apps}
kind = next((each for each in rows if each in asked), None)
if kind:
    names, form = asked[kind].replace(" ", "").split(","), asked.get("format", "").replace(" ", "").split(",")
    if "noheader" not in form: print(", ".join(names))
    for row in rows[kind]:
        values = [row.get(name, "[N/A]") for name in names]
        print(", ".join(value.split()[0] if "nounits" in form and value[0].isdigit() else value for value in values))
elif "L" in asked:
    for card in cards: print(f"GPU {card['index']}: {card['name']} (UUID: {card['uuid']})")
else:
    print(f"NVIDIA-SMI (emulated)  Driver Version: {text('nvmlSystemGetDriverVersion')}")
    for card in cards: print(f"{card['index']}  {card['name']}  {card['memory.used']} / {card['memory.total']}")
"""
"""Answers lists of cards and of processes, and queries with their formats, by the emulated NVML."""

_OF_A_RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

MARKS = "marks"
"""File in the folder of a job: the marks of all its processes."""


def is_strict(environment: Mapping[str, str]) -> bool:
    """Return whether a process with this environment ends at an entry point of the driver that has no answer."""
    return _STRICT in environment


def _distributed(num_processes: int) -> dict[str, str]:
    """Return what a launcher would set for rank 0 of a job on one machine."""
    return {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(num_processes),
        "LOCAL_WORLD_SIZE": str(num_processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }


def _joined(first: str, rest: str | None) -> str:
    return f"{first}{os.pathsep}{rest}" if rest else first


_PROGRAM = """
import json, torch
from profiler.emulation.card import marks_of_this_process
device = torch.device("cuda")
layers = torch.nn.Embedding(1000, 64), torch.nn.Linear(64, 64), torch.nn.Linear(64, 1000)
model = torch.nn.Sequential(*layers).to(device)
optimizer = torch.optim.AdamW(model.parameters())
tokens = torch.arange(512, device=device).remainder(7)
loss = torch.nn.functional.cross_entropy(model(tokens), tokens)
loss.backward()
optimizer.step()
marks = marks_of_this_process()
print(json.dumps({
    "card": torch.cuda.get_device_name(),
    "memory_bytes": torch.cuda.mem_get_info()[1],
    "allocated_bytes": torch.cuda.max_memory_allocated(),
    "reserved_bytes": torch.cuda.max_memory_reserved(),
    "zeros_counted": int((tokens == 0).sum()),
    "values": marks.values if marks else "not emulated",
}))
"""
"""Trains a small network for a step, reads values that the host needs, and prints what it found."""

_ZEROS = 74
"""Of 0 to 511, so many are divisible by 7."""

_TIMEOUT_S = 600


class CheckError(ProfilerError):
    """The program did not run as on a card."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """What the program found."""

    card: str
    memory_bytes: int
    allocated_bytes: int
    """Peak of torch's counter."""
    reserved_bytes: int
    values: str
    """``"complete"``, or unknown values that the host read."""


def check(python: EmulatedPython, gpu: Gpu, *, strict: bool = True) -> Check:
    """Run the program and return what it found.

    Raises:
        CheckError: It ended with an error, or a value was wrong.
    """
    environment = process_environment(python, gpu, base=os.environ, strict=strict)
    command = [str(python.executable), *safe_path_flags(), "-c", _PROGRAM]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CheckError(f"The program did not run on the emulated card: {error}") from error
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise CheckError(f"The program failed on the emulated card: {last}")
    found = json.loads(lines[-1])
    if found["zeros_counted"] != _ZEROS:
        raise CheckError(
            f"The program counted {found['zeros_counted']} zeros on the emulated card instead of {_ZEROS}."
        )
    return Check(
        card=found["card"],
        memory_bytes=found["memory_bytes"],
        allocated_bytes=found["allocated_bytes"],
        reserved_bytes=found["reserved_bytes"],
        values=found["values"],
    )
