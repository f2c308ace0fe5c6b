"""Which GPUs are assigned to trials, and why a GPU is retired, with a scripted driver."""

import os

import pytest
from scripted import ScriptedNvml

from profiler.domain.memory import GIB
from profiler.execution.gpus import GpuPool
from profiler.measurement.driver.nvml import GpuProcess, NvmlTrouble
from profiler.measurement.samples.summary import EMPTY_BYTES


class HandClock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture
def pool(tmp_path, clock):
    def made(nvml, *uuids):
        return GpuPool(uuids or ("GPU-a", "GPU-b"), nvml=nvml, lock_folder=tmp_path, clock=clock, wait_for_empty_s=60)

    return made


def test_each_gpu_is_assigned_once_and_again_after_it_is_given_back(pool):
    gpus = pool(ScriptedNvml())
    first, second = gpus.take(), gpus.take()
    assert (first.uuid, second.uuid) == ("GPU-a", "GPU-b")
    assert gpus.take() is None
    gpus.give_back(first)
    assert gpus.take().uuid == "GPU-a"
    assert gpus.usable
    assert gpus.retired == ()


def test_a_gpu_of_another_sweep_is_not_used_until_it_is_free(pool, clock):
    ours, theirs = pool(ScriptedNvml(), "GPU-a"), pool(ScriptedNvml(), "GPU-a", "GPU-b")
    slot = ours.take()
    assert theirs.take().uuid == "GPU-b"
    clock.now_s += 10_000
    assert theirs.take() is None
    assert theirs.usable
    assert len(theirs.waits) == 1
    assert theirs.waits[0].startswith("Waiting for GPU GPU-a: another sweep measures on it and holds ")
    ours.give_back(slot)
    assert theirs.take().uuid == "GPU-a"
    assert theirs.waits == ()


def test_a_gpu_that_is_not_empty_is_waited_for(pool, clock):
    nvml = ScriptedNvml(used_bytes=EMPTY_BYTES + 1)
    gpus = pool(nvml, "GPU-a")
    assert gpus.take() is None
    clock.now_s += 59
    assert gpus.take() is None
    assert gpus.usable
    assert gpus.waits == ("Waiting for GPU GPU-a: other programs hold its memory; it is left out after 60 s.",)
    nvml.used_bytes = EMPTY_BYTES
    assert gpus.take().uuid == "GPU-a"


def test_after_the_wait_it_is_retired_with_the_name_of_the_program(pool, clock):
    nvml = ScriptedNvml(
        used_bytes=7 * GIB, listed=(GpuProcess(pid=1, used_bytes=7 * GIB), GpuProcess(pid=os.getpid(), used_bytes=1))
    )
    gpus = pool(nvml, "GPU-a")
    assert gpus.take() is None
    clock.now_s += 60
    assert gpus.take() is None
    assert not gpus.usable
    (sentence,) = gpus.retired
    assert "GPU GPU-a is not used any more: other programs hold 7.00 GiB of its memory (process 1" in sentence
    assert str(os.getpid()) not in sentence
    nvml.used_bytes = 0
    assert gpus.take() is None


def test_the_wait_starts_again_when_the_gpu_was_empty_in_between(pool, clock):
    nvml = ScriptedNvml(used_bytes=7 * GIB)
    gpus = pool(nvml, "GPU-a")
    gpus.take()
    clock.now_s += 59
    nvml.used_bytes = 0
    gpus.give_back(gpus.take())
    nvml.used_bytes = 7 * GIB
    gpus.take()
    clock.now_s += 59
    gpus.take()
    assert gpus.usable


def test_without_a_driver_the_gpu_is_used_unchecked(pool):
    gpus = pool(ScriptedNvml(broken={"memory": NvmlTrouble.ABSENT, "uncorrected_errors": NvmlTrouble.NOT_SUPPORTED}))
    slot = gpus.take()
    assert slot is not None
    assert gpus.fault_of(slot) == ""


def test_only_memory_errors_during_a_trial_are_a_fault(pool):
    nvml = ScriptedNvml(errors=3)
    gpus = pool(nvml)
    slot = gpus.take()
    assert gpus.fault_of(slot) == ""
    nvml.errors = 5
    assert gpus.fault_of(slot) == "it had 2 memory errors that could not be corrected"


@pytest.mark.parametrize(
    ("xids", "fault"),
    [((), ""), ((31, 43), ""), ((79,), "the driver reported Xid 79"), ((13, 48, 63), "the driver reported Xid 48, 63")],
)
def test_only_xid_errors_of_the_gpu_are_a_fault(pool, xids, fault):
    nvml = ScriptedNvml(xids=(79,))  # before the trial
    gpus = pool(nvml)
    slot = gpus.take()
    nvml.xids = xids
    assert gpus.fault_of(slot) == fault
    assert gpus.fault_of(slot) == ""


def test_a_driver_that_reports_no_xid_errors_is_no_fault(pool):
    gpus = pool(ScriptedNvml(broken={"xid_errors": NvmlTrouble.NOT_SUPPORTED}))
    assert gpus.fault_of(gpus.take()) == ""


def test_a_lost_gpu_is_a_fault_and_never_assigned_again(pool):
    nvml = ScriptedNvml()
    gpus = pool(nvml, "GPU-a")
    slot = gpus.take()
    nvml.lose()
    fault = gpus.fault_of(slot)
    assert fault.startswith("the driver has lost it (GPU-a")
    gpus.retire(slot, fault)
    assert gpus.take() is None
    assert not gpus.usable


def test_a_gpu_that_is_lost_before_the_first_trial_is_skipped(pool):
    nvml = ScriptedNvml()
    nvml.lose()
    gpus = pool(nvml, "GPU-a")
    assert gpus.take() is None
    assert not gpus.usable
    assert "the driver has lost it" in gpus.retired[0]


def test_a_retired_gpu_stays_locked_for_others(pool):
    ours, theirs = pool(ScriptedNvml(), "GPU-a"), pool(ScriptedNvml(), "GPU-a")
    ours.retire(ours.take(), "a worker that cannot be killed still holds it")
    assert theirs.take() is None


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path, target: path.symlink_to(target), "It is a symbolic link, and locks are not taken through one"),
        (lambda path, target: path.mkdir(), "Remove it, or ask its owner to"),
    ],
    ids=["link", "folder"],
)
def test_something_else_in_place_of_the_lock_costs_that_gpu_only(pool, tmp_path, make, reason):
    """The folder of the locks belongs to all users of the machine."""
    target, path = tmp_path / "target", tmp_path / "grpo-vram-profiler.GPU-a.lock"
    make(path, target)
    gpus = pool(ScriptedNvml())
    assert gpus.take().uuid == "GPU-b"
    (sentence,) = gpus.retired
    assert sentence.startswith(f"GPU GPU-a is not used any more: {path}: could not be locked (")
    assert sentence.removesuffix(": remove it.").removesuffix(".").endswith(reason)
    assert not target.exists()
