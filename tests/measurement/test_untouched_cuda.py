"""The modules of workers are imported without initialising CUDA, as far as this is testable without a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from profiler.measurement.counters import untouched_cuda as module
from profiler.measurement.counters.untouched_cuda import compiled_at_first_call, fork_problem, untouched_cuda
from profiler.measurement.driver.visible import CAPABILITIES, VisibleGpu, capability_environment

_IMPORT_THE_WARMED_MODULES = """
import json, sys, threading, traceback
import torch

callers = []

def initialise():
    callers.append(["/".join(frame.filename.split("/")[-2:]) for frame in traceback.extract_stack()])
    raise RuntimeError("CUDA is touched")

torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 1
torch.cuda._lazy_init = initialise
# A CUDA build has it; bitsandbytes takes it at import.
torch._C._cuda_getCurrentRawStream = None

import profiler.worker_imports
import bitsandbytes

print(json.dumps({
    "callers": callers,
    "compiler": "torch._inductor.compile_fx" in sys.modules,
    "torch and trl": {"torch", "trl"} <= sys.modules.keys(),
    "initialised": torch.cuda.is_initialized(),
    "driver": "pynvml" in sys.modules and sys.modules["pynvml"].nvmlLib is not None,
    "threads": threading.active_count(),
}))
"""


def imported(environment):
    finished = subprocess.run(
        [sys.executable, "-c", _IMPORT_THE_WARMED_MODULES],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(finished.stdout.splitlines()[-1])


@pytest.mark.slow
def test_the_warmed_modules_touch_no_cuda_where_the_capability_is_known():
    """So each worker can choose its GPU, and forking is safe."""
    assert imported({CAPABILITIES: "9.0"}) == {
        "callers": [], "compiler": False, "torch and trl": True, "initialised": False, "driver": False, "threads": 1,
    }  # fmt: skip


@pytest.mark.slow
def test_without_the_capability_bitsandbytes_touches_cuda_at_import():
    """The reason for the environment variable. If this fails, bitsandbytes no longer asks, and it can be removed."""
    callers = imported({})["callers"]
    assert callers
    assert all("bitsandbytes/cuda_specs.py" in frames for frames in callers)


@pytest.mark.parametrize("as_decorator", [False, True])
def test_a_function_is_compiled_when_it_is_first_called(monkeypatch, as_decorator):
    compiled = []

    def compiler(function, **options):
        compiled.append((function.__name__, options))
        return lambda value: ("compiled", function(value))

    def double(value):
        return 2 * value

    monkeypatch.setattr(torch, "compile", compiler)
    with compiled_at_first_call():
        made = torch.compile(dynamic=False)(double) if as_decorator else torch.compile(double, dynamic=False)
    assert torch.compile is compiler
    assert compiled == []
    assert (made(2), made(3), made.__name__) == (("compiled", 4), ("compiled", 6), "double")
    assert compiled == [("double", {"dynamic": False})]


def gpu(capability):
    return VisibleGpu(uuid="GPU-1", name="card", memory_bytes=1, compute_capability=capability)


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ([(9, 0)], {CAPABILITIES: "9.0"}),
        ([(9, 0), (8, 6)], {CAPABILITIES: "9.0,8.6"}),
        ([(9, 0), None], {}),
        ([], {}),
    ],
)
def test_what_is_handed_on(capabilities, expected):
    assert capability_environment([gpu(found) for found in capabilities]) == expected


def test_the_stated_capability_of_each_device_is_the_answer():
    asked = torch.cuda.get_device_capability
    with untouched_cuda({CAPABILITIES: "9.0,12.1"}):
        assert torch.cuda.get_device_capability() == (9, 0)
        assert torch.cuda.get_device_capability(1) == (12, 1)
        assert torch.cuda.get_device_capability(torch.device("cuda", 1)) == (12, 1)
    assert torch.cuda.get_device_capability is asked


def test_without_a_stated_capability_torch_answers_itself():
    asked = torch.cuda.get_device_capability
    with untouched_cuda({}):
        assert torch.cuda.get_device_capability is asked


def test_the_first_user_of_cuda_is_named_in_the_problem(monkeypatch):
    monkeypatch.setattr(module, "_first_users", [])
    with untouched_cuda({}), pytest.raises((AssertionError, RuntimeError)):
        torch.cuda.get_device_properties(0)  # no GPU, or no CUDA in this build
    assert fork_problem() == ""
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    here = f"{Path(__file__).parent.name}/{Path(__file__).name}"
    assert f"initialised by {here}:" in fork_problem()
