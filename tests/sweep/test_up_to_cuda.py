"""A measured sweep as a user starts it, up to the first call of CUDA.

The driver is a stub (`tests/measurement/stub_nvml.c`), and torch is a build without CUDA, which raises at that call.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

COMPILER = shutil.which("cc")
STUB = Path(__file__).parents[1] / "measurement" / "stub_nvml.c"

_SWEEP = """
import sys
from dataclasses import replace
from profiler.storage.records.versioned import installed_versions
from profiler.sweep.main import main
from profiler.sweep.parts import SweepParts

# The version of a build without CUDA names it, and such a build is refused before anything starts.
versions = replace(installed_versions(), torch="2.13.0")
sys.exit(main(sys.argv[1:], parts=SweepParts(installed_versions=lambda: versions)))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if COMPILER is None or torch.backends.cuda.is_built():
        pytest.skip("no C compiler, or a torch that knows CUDA")
    folder = tmp_path_factory.mktemp("driver")
    words = ["-shared", "-fPIC", "-o", str(folder / "libnvidia-ml.so.1"), str(STUB)]
    subprocess.run([COMPILER, *words], check=True)
    return folder


def sweep(library, tmp_path, **environment):
    words = ["+grid=completion_length", "model=tiny", "tuning=full", "max_completion_length=8", "steps=1"]
    return subprocess.run(
        [sys.executable, "-c", _SWEEP, *words, f"results_dir={tmp_path}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "LD_LIBRARY_PATH": str(library), **environment},
    )


def test_the_sweep_gets_to_the_first_call_of_cuda(library, tmp_path):
    done = sweep(library, tmp_path, STUB_NVML_USED_MIB="100")
    assert "backend=auto: cuda, because Stub 80GB is visible." in done.stdout
    assert done.returncode == 3, done.stderr
    assert "1 of 1 trials have no answer" in done.stderr
    (record,) = [json.loads(path.read_text())["record"] for path in tmp_path.rglob("records/*.json")]
    outcome = record["outcome"]
    assert (record["spec"]["backend"], outcome["status"]) == ("cuda", "failed")
    assert "Torch not compiled with CUDA enabled" in outcome["message"]
    assert "prepare_card" in outcome["message"]


def test_a_lost_gpu_ends_the_sweep_with_33(library, tmp_path):
    done = sweep(library, tmp_path, STUB_NVML_BROKEN="nvmlDeviceGetTotalEccErrors=15", STUB_NVML_USED_MIB="100")
    assert done.returncode == 33, done.stderr
    assert "1 trial was not run: no GPU is left. GPU GPU-stub is not used any more: the driver has lost it" in (
        done.stderr
    )
    assert (tmp_path / "completion_length" / "runs.parquet").exists()
