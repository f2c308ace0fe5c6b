"""The real pynvml with a stub of the driver's library, built here; skipped without a C compiler."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from profiler.domain.memory import GIB

COMPILER = shutil.which("cc")

_PROGRAM = """
import json, sys
from dataclasses import asdict, is_dataclass
from profiler.measurement.driver.nvml import NvmlError
from profiler.measurement.driver.pynvml_driver import PynvmlDriver
from profiler.measurement.driver.visible import visible_gpus

driver = PynvmlDriver()
said = {}
for method in sys.argv[2:]:
    try:
        said[method] = getattr(driver, method)(*([] if method == "driver_version" else [sys.argv[1]]))
    except NvmlError as error:
        said[method] = [error.trouble, str(error)]
said["visible"] = visible_gpus(environment={})
print(json.dumps(said, default=lambda value: asdict(value) if is_dataclass(value) else str(value)))
"""

METHODS = (
    "driver_version",
    "memory",
    "processes",
    "utilisation_percent",
    "power_watts",
    "sm_clock_mhz",
    "temperature_celsius",
    "uncorrected_errors",
    "xid_errors",
)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if COMPILER is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).parent / "stub_nvml.c"
    built = folder / "libnvidia-ml.so.1"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(built), str(source)], check=True)
    return folder


def ask(library, *methods, uuid="GPU-stub", broken=""):
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library), "STUB_NVML_BROKEN": broken}
    words = [sys.executable, "-c", _PROGRAM, uuid, *methods]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_values_of_the_driver_are_converted(library):
    said = ask(library, *METHODS)
    assert said["driver_version"] == "580.65.06"
    assert said["memory"] == {"total_bytes": 80 * GIB, "used_bytes": 3 * GIB, "free_bytes": 76 * GIB}
    assert said["processes"] == [{"pid": 41, "used_bytes": GIB}, {"pid": 42, "used_bytes": None}]
    assert (said["utilisation_percent"], said["power_watts"], said["sm_clock_mhz"]) == (55, 312.5, 1980)
    assert said["temperature_celsius"] == 61
    assert said["uncorrected_errors"] == 2
    assert said["xid_errors"] == [79]
    (gpu,) = said["visible"]["gpus"]
    assert (gpu["uuid"], gpu["name"], said["visible"]["driver_version"]) == ("GPU-stub", "Stub 80GB", "580.65.06")


def test_each_xid_error_is_reported_once(library):
    assert ask(library, "xid_errors")["xid_errors"] == [79]
    assert ask(library, "xid_errors", "xid_errors")["xid_errors"] == []
    said = ask(library, "xid_errors", broken="nvmlDeviceRegisterEvents=3")
    assert said["xid_errors"] == ["not supported", "Not Supported"]


def test_an_old_driver_includes_its_own_memory(library):
    assert ask(library, "memory", broken="nvmlDeviceGetMemoryInfo_v2=13")["memory"]["used_bytes"] == 4 * GIB


@pytest.mark.parametrize(
    ("broken", "method", "trouble"),
    [
        ("nvmlDeviceGetMemoryInfo_v2=15", "memory", "gpu lost"),
        ("nvmlDeviceGetHandleByUUID=15", "power_watts", "gpu lost"),
        ("nvmlDeviceGetPowerUsage=16", "power_watts", "gpu lost"),
        ("nvmlDeviceGetTotalEccErrors=3", "uncorrected_errors", "not supported"),
        ("nvmlDeviceGetComputeRunningProcesses_v3=4", "processes", "not supported"),
        ("nvmlDeviceGetUtilizationRates=999", "utilisation_percent", "other"),
        ("nvmlInitWithFlags=9", "memory", "absent"),
    ],
)
def test_errors_are_sorted(library, broken, method, trouble):
    assert ask(library, method, broken=broken)[method][0] == trouble


def test_a_gpu_is_found_by_its_uuid_or_not_at_all(library):
    assert ask(library, "memory", uuid="GPU-another")["memory"][0] == "other"


def test_without_a_driver_everything_is_absent(tmp_path):
    said = ask(tmp_path, *METHODS)
    if said["visible"]["gpus"]:
        pytest.skip("this machine has a driver")
    assert {answer[0] for method, answer in said.items() if method != "visible"} == {"absent"}
