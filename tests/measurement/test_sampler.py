"""Samples of a scripted driver, and peaks between two of them."""

import threading
from dataclasses import replace

import pytest
from scripted import UUID, Clock, ScriptedNvml

from profiler.domain.memory import GIB, MIB, Phase
from profiler.domain.runs.readings import PhasePeak, Sample
from profiler.measurement.driver.nvml import GpuProbe, GpuProcess, NvmlTrouble
from profiler.measurement.samples.sampler import Sampler
from profiler.measurement.samples.summary import (
    GROWN_BYTES,
    UNEXPLAINED_BYTES,
    PhaseEnd,
    contention,
    missed_by_sampling_bytes,
    sampled_max_device_bytes,
    with_activity,
)


def sampler(nvml: ScriptedNvml, where=lambda: (Phase.FORWARD, 2), **changes) -> Sampler:
    probe = GpuProbe(nvml, UUID, own_processes=lambda: frozenset({7}))
    return Sampler(probe, clock=Clock(0.5), where=where, **changes)


def test_a_sample_has_the_drivers_values_and_the_phase():
    nvml = ScriptedNvml(used_bytes=3 * GIB, listed=(GpuProcess(pid=7, used_bytes=GIB),))
    one = sampler(nvml)
    assert one.take()
    assert one.samples == (
        Sample(
            time_s=0.5,
            phase=Phase.FORWARD,
            step=2,
            device_used_bytes=3 * GIB,
            process_used_bytes=GIB,
            utilisation_percent=40,
            power_watts=300.5,
            sm_clock_mhz=1980,
        ),
    )


def test_slow_values_are_read_rarely():
    nvml = ScriptedNvml()
    one = sampler(nvml, slow_every=4)
    for _ in range(9):
        one.take()
    assert nvml.asked.count("memory") == 9
    assert nvml.asked.count("power_watts") == 3
    assert [sample.power_watts is not None for sample in one.samples] == [place % 4 == 0 for place in range(9)]


def test_a_lost_gpu_ends_the_sampling_and_is_reported():
    nvml = ScriptedNvml()
    one = sampler(nvml)
    one.take()
    nvml.lose()
    assert not one.take()
    asked = len(nvml.asked)
    assert not one.take()
    assert len(nvml.asked) == asked
    assert UUID in one.gpu_lost
    assert len(one.samples) == 1


def test_the_thread_samples_until_it_is_stopped():
    enough = threading.Event()
    nvml = ScriptedNvml(used_bytes=lambda: (len(nvml.asked) > 20 and enough.set()) or GIB)
    one = sampler(nvml, period_s=0.001)
    one.start()
    assert enough.wait(300)
    one.stop()
    taken = len(one.samples)
    assert taken > 5
    assert threading.active_count() == 1 or all(thread.name != "sampler" for thread in threading.enumerate())
    assert len(one.samples) == taken


class Driven(threading.Event):
    """The event of a sampler's thread, whose waiting moves a clock."""

    def __init__(self, clock: Clock, *, until_s: float) -> None:
        super().__init__()
        self.clock, self.until_s = clock, until_s

    def wait(self, timeout: float | None = None) -> bool:
        self.clock.now_s += timeout or 0.0
        return self.clock.now_s > self.until_s


def test_samples_that_were_missed_are_not_caught_up_in_a_burst():
    """The host stood still for ten seconds: a hundred samples of the same instant would outweigh all others."""
    clock = Clock(0.0)
    stalls = iter([0.0, 0.0, 10.0])
    nvml = ScriptedNvml(used_bytes=lambda: setattr(clock, "now_s", clock.now_s + next(stalls, 0.0)) or GIB)
    one = Sampler(
        GpuProbe(nvml, UUID, own_processes=frozenset), clock=clock, where=lambda: (Phase.FORWARD, 1), period_s=0.1
    )
    one._stop = Driven(clock, until_s=clock.now_s + 11.0)
    one._run()
    times_s = [sample.time_s for sample in one.samples]
    assert 10 <= len(times_s) <= 16  # three before, and ten in the second after


def test_a_sampler_that_never_started_can_be_stopped():
    sampler(ScriptedNvml()).stop()


def at(phase: Phase, used_gib: float | None, **more) -> Sample:
    empty = Sample(
        time_s=0.0,
        phase=phase,
        step=1,
        device_used_bytes=None if used_gib is None else int(used_gib * GIB),
        process_used_bytes=None,
        utilisation_percent=None,
        power_watts=None,
        sm_clock_mhz=None,
    )
    return replace(empty, **more)


FORWARD = PhasePeak(phase=Phase.FORWARD, peak_allocated_bytes=1, peak_reserved_bytes=2)
BACKWARD = replace(FORWARD, phase=Phase.BACKWARD)


def test_means_are_of_the_samples_of_the_phase_that_have_the_figure():
    samples = [
        at(Phase.FORWARD, 3, utilisation_percent=50, power_watts=100.0),
        at(Phase.FORWARD, 5),
        at(Phase.FORWARD, 4, utilisation_percent=100),
        at(Phase.ROLLOUT, 9, utilisation_percent=7),
    ]
    forward, backward = with_activity([FORWARD, BACKWARD], samples)
    assert (forward.samples, forward.sampled_max_device_bytes) == (3, 5 * GIB)
    assert (forward.mean_utilisation_percent, forward.mean_power_watts) == (75.0, 100.0)
    assert forward.mean_sm_clock_mhz is None
    assert (backward.samples, backward.sampled_max_device_bytes, backward.mean_power_watts) == (0, None, None)


def test_a_peak_between_two_samples_counts_as_missed():
    seen = sampled_max_device_bytes([at(Phase.FORWARD, 3), at(Phase.FORWARD, 5), at(Phase.FORWARD, None)])
    assert seen == 5 * GIB
    assert missed_by_sampling_bytes(peak_device_bytes=9 * GIB, sampled_max_bytes=seen) == 4 * GIB
    assert missed_by_sampling_bytes(peak_device_bytes=5 * GIB, sampled_max_bytes=seen) == 0
    assert missed_by_sampling_bytes(peak_device_bytes=9 * GIB, sampled_max_bytes=None) is None


@pytest.mark.parametrize(
    ("others_gib", "before_gib", "contended"),
    [
        ([0, 0, 0], 0, False),
        ([1, 1, 1], 1, False),
        ([0, 2, 0], 0, False),  # freed between the two readings of one sample
        ([0, 2, 2], 0, True),
        ([0, 2, 2], None, True),
        ([3, 3, 1], 3, False),
    ],
)
def test_memory_that_others_took_during_the_trial(others_gib, before_gib, contended):
    samples = [at(Phase.FORWARD, 10 + more, process_used_bytes=10 * GIB) for more in others_gib]
    before = None if before_gib is None else before_gib * GIB
    assert bool(contention(samples, (), before_bytes=before)) is contended


def test_a_context_is_not_contention_but_more_than_one_is():
    def judged(*contexts, others=None):
        phase_ends = [PhaseEnd(context_bytes=size, others_bytes=others) for size in contexts]
        return contention((), phase_ends, before_bytes=0)

    assert not judged(0, 800 * MIB, UNEXPLAINED_BYTES)
    assert "Another program took 2.12 GiB" in judged(0, UNEXPLAINED_BYTES + 128 * MIB)
    assert not judged()
    assert not judged(0, UNEXPLAINED_BYTES + 128 * MIB, others=0)
    assert judged(0, 800 * MIB, others=GROWN_BYTES + 1)
    assert GROWN_BYTES < UNEXPLAINED_BYTES


def test_without_listed_processes_samples_show_no_others():
    assert not contention([at(Phase.FORWARD, 70), at(Phase.FORWARD, 70)], (), before_bytes=0)


def test_without_a_driver_samples_are_empty():
    every = dict.fromkeys(("memory", "processes", "utilisation_percent", "power_watts"), NvmlTrouble.ABSENT)
    one = sampler(ScriptedNvml(broken={**every, "sm_clock_mhz": NvmlTrouble.ABSENT}))
    for _ in range(30):
        one.take()
    assert one.samples[0] == at(Phase.FORWARD, None, time_s=0.5, step=2)
    assert len(one.samples) == 30
