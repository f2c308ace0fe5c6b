"""Samples of long runs: their number is bounded, and no sampled peak is lost."""

from profiler.domain.memory import Phase
from profiler.domain.runs.other_runs import HostSample
from profiler.domain.runs.readings import Sample
from profiler.measurement.samples.sampler import BoundedSamples, merged_host_sample, merged_sample


def sample(time_s, used, phase=Phase.LOAD, utilisation=None, power=None):
    return Sample(
        time_s=time_s,
        phase=phase,
        step=0,
        device_used_bytes=used,
        process_used_bytes=None,
        utilisation_percent=utilisation,
        power_watts=power,
        sm_clock_mhz=None,
    )


def test_neighbours_are_merged_when_there_are_too_many():
    kept = BoundedSamples(max, most=4)
    for value in range(100):
        kept.append(value)
        assert len(kept.samples()) <= 4 + 1
    assert kept.stride == 32
    assert kept.samples()[-1] == 99


def test_a_peak_keeps_its_size_and_its_phase():
    kept = BoundedSamples(merged_sample, most=8)
    for place in range(1000):
        kept.append(sample(place, 70 if place == 333 else 10, Phase.BACKWARD if place == 333 else Phase.ROLLOUT))
    highest = max(kept.samples(), key=lambda one: one.device_used_bytes)
    assert (highest.device_used_bytes, highest.phase) == (70, Phase.BACKWARD)
    times = [one.time_s for one in kept.samples()]
    assert times == sorted(times)
    assert times[0] == 0


def test_means_are_of_the_values_that_were_read():
    merged = merged_sample(sample(0, 1, utilisation=40, power=100.0), sample(1, 2, power=200.0))
    assert (merged.utilisation_percent, merged.power_watts, merged.device_used_bytes) == (40, 150.0, 2)


def test_the_host_keeps_the_highest_of_each_value():
    one = HostSample(time_s=0, processes=1, tree_bytes=9, used_bytes=None)
    other = HostSample(time_s=1, processes=3, tree_bytes=2, used_bytes=5)
    assert merged_host_sample(one, other) == HostSample(time_s=0, processes=3, tree_bytes=9, used_bytes=5)
