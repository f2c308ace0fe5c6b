"""Errors of the driver: a missing value with its reason, or a lost GPU."""

import pytest
from scripted import UUID, ScriptedNvml

from profiler.measurement.driver.nvml import GpuLostError, GpuProbe, GpuProcess, NvmlTrouble

FIGURES = {
    "used_bytes": "memory",
    "process_bytes": "processes",
    "utilisation_percent": "utilisation_percent",
    "power_watts": "power_watts",
    "sm_clock_mhz": "sm_clock_mhz",
    "uncorrected_errors": "uncorrected_errors",
}


def probe(nvml: ScriptedNvml) -> GpuProbe:
    return GpuProbe(nvml, UUID, own_processes=lambda: frozenset({7, 8}))


@pytest.mark.parametrize(("figure", "method"), FIGURES.items())
@pytest.mark.parametrize("trouble", [NvmlTrouble.NOT_SUPPORTED, NvmlTrouble.ABSENT, NvmlTrouble.OTHER])
def test_a_missing_value_is_none_with_its_reason(figure, method, trouble):
    nvml = ScriptedNvml(broken={method: trouble})
    one = probe(nvml)
    assert [getattr(one, figure)() for _ in range(3)] == [None, None, None]
    (reason,) = one.missing.values()
    assert reason == f"{method} says {trouble}"
    # An unsupported value is read only once.
    assert nvml.asked.count(method) == (3 if trouble is NvmlTrouble.OTHER else 1)


@pytest.mark.parametrize(("figure", "method"), FIGURES.items())
def test_a_lost_gpu_is_not_a_missing_value(figure, method):
    with pytest.raises(GpuLostError, match=UUID):
        getattr(probe(ScriptedNvml(broken={method: NvmlTrouble.GPU_LOST})), figure)()


def test_a_value_that_returns_has_no_reason():
    nvml = ScriptedNvml(used_bytes=5, broken={"memory": NvmlTrouble.OTHER})
    one = probe(nvml)
    assert one.used_bytes() is None
    nvml.broken.clear()
    assert one.used_bytes() == 5
    assert not one.missing


@pytest.mark.parametrize(
    ("listed", "own", "others"),
    [
        ([], None, []),
        ([(7, 10), (8, 20), (9, 40)], 30, [9]),
        ([(1234, 10)], None, [1234]),
        ([(7, None)], None, []),
    ],
    ids=["empty list", "a process tree", "the host's numbers", "no sizes"],
)
def test_memory_of_the_trials_processes(listed, own, others):
    one = probe(ScriptedNvml(listed=tuple(GpuProcess(pid=pid, used_bytes=used) for pid, used in listed)))
    assert one.process_bytes() == own
    assert [process.pid for process in one.others()] == others
    assert ("process memory" in one.missing) == (own is None)


def listing(*pids):
    return tuple(GpuProcess(pid=pid, used_bytes=pid) for pid in pids)


@pytest.mark.parametrize(
    ("before", "first", "later", "expected"),
    [
        ([], [1234], [1234], (1234, 1234)),
        ([99], [99, 1234], [99, 1234], (1234, 1234)),
        ([], [1234], [1234, 5678], (1234, 1234)),
        ([], [1234, 5678], [1234], (None, None)),
        ([], [], [1234], (None, 1234)),
        ([1234], [1234], [1234], (None, None)),
    ],
    ids=["alone", "with others", "another comes later", "two come at once", "listed late", "there before"],
)
def test_in_a_container_the_only_new_process_is_the_trials(before, first, later, expected):
    nvml = ScriptedNvml(listed=listing(*before))
    one = probe(nvml)
    one.before_the_trial()
    nvml.listed = listing(*first)
    own = [one.process_bytes()]
    nvml.listed = listing(*later)
    assert (*own, one.process_bytes()) == expected


def test_without_a_reading_before_the_trial_no_process_counts_as_new():
    one = probe(ScriptedNvml(listed=listing(1234)))
    assert one.process_bytes() is None
