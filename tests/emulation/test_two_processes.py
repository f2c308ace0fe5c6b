"""FSDP 2 for real, on two processes of the CPU with gloo, and emulated: the same bytes (docs/evidence.md)."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from emulation import fsdp_job

from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import UsageError
from profiler.emulation.launch import emulated_python, process_environment

JOB = fsdp_job.__file__

EMULATED = {
    "forward 1": (43_319_808, 55_583_232),
    "backward 1": (48_955_392, 65_733_120),
    "step 1": (50_331_648, 60_817_408),
    "zero_grad 1": (-25_165_824, 0),
    "forward 2": (9_765_376, 25_240_064),
    "backward 2": (15_400_960, 32_178_688),
    "step 2": (0, 10_485_760),
    "zero_grad 2": (-25_165_824, 0),
}
"""Growth and peak of each part on an emulated H100, torch 2.13; `test_the_emulated_job_has_the_kept_bytes` has them."""

WORKSPACE = 33_554_432
"""cuBLAS's, of which a forward and a backward allocate one each."""

GLOO_COPY = 2 * fsdp_job.HIDDEN * 4 * fsdp_job.HIDDEN * 2 // fsdp_job.PROCESSES
"""The shard of a layer in bfloat16, which gloo copies to gather it."""

ROUNDING = 16 * 1024
"""torch's allocator rounds each block on a card to 512 bytes; the CPU's does not."""


MOST_RUNS = 8
"""A machine on which eight processes share two cores needed more than three runs; others need one."""


def run_job(store):
    """Return the growth and peak of each part, by rank."""
    command, environment = [sys.executable, JOB, "cpu"], {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(store)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(fsdp_job.PROCESSES)
    ]
    return [json.loads(rank.communicate(timeout=600)[0].splitlines()[-1]) for rank in ranks]


def differences(found):
    """Return the parts of the second step that differ from the emulation: a card has its workspaces by then."""
    least = {part: min(tuple(rank[part]) for rank in found) for part in found[0]}
    names = [f"{part} 2" for part in ("forward", "backward", "step", "zero_grad")]
    pairs = [(name, real, kept) for name in names for real, kept in zip(least[name], EMULATED[name], strict=True)]
    return [(name, real, kept) for name, real, kept in pairs if not equal_but_for_gloo(real, kept)]


def test_two_processes_need_what_is_emulated(tmp_path):
    found = run_job(tmp_path / "store 1")
    for number in range(2, MOST_RUNS + 1):
        # On a busy machine threads of gloo keep more copies, and for longer: the least of several runs counts.
        if differences(found):
            found += run_job(tmp_path / f"store {number}")
    assert differences(found) == []
    first = min(rank["step 1"][0] for rank in found)
    assert equal_but_for_gloo(first, EMULATED["step 1"][0])


def equal_but_for_gloo(found: int, expected: int) -> bool:
    """Return whether sizes are equal but for copies of gloo: how many it holds at an instant depends on its threads."""
    return any(abs(found - expected - copies * GLOO_COPY) <= ROUNDING for copies in (0, 1, 2))


def test_the_first_step_differs_by_the_workspaces():
    for part in ("forward", "backward"):
        first, second = (EMULATED[f"{part} {step}"] for step in (1, 2))
        assert first[0] - second[0] == WORKSPACE


def test_the_emulated_job_has_the_kept_bytes():
    if shutil.which("g++") is None:
        pytest.skip("g++ not found")
    try:
        python = emulated_python()
    except UsageError as error:
        pytest.skip(f"no environment with a CUDA build of torch: {error}")
    environment = process_environment(python, KNOWN_GPUS["h100-80gb"], num_processes=2, base=os.environ)
    environment["PYTHONPATH"] += f"{os.pathsep}{Path(JOB).parent}"
    done = subprocess.run(
        [str(python.executable), JOB, "cuda"], env=environment, capture_output=True, text=True, timeout=300, check=True
    )
    assert {name: tuple(pair) for name, pair in json.loads(done.stdout.splitlines()[-1]).items()} == EMULATED
