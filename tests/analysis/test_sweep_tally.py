"""The count of a running sweep."""

from dataclasses import replace

import builders
import pytest

from profiler.analysis.times.sweep_time import SweepTally
from profiler.domain.machines.engines import THIS_MACHINE, Machines, Money, OtherMachines
from profiler.domain.runs.outcome import Outcome, Status, Verdict, Work
from profiler.domain.trials.trial import Backend

SMALL = [builders.spec(seed=seed) for seed in range(4)]
LARGE = [builders.spec(model="qwen2.5-14b", seed=seed) for seed in range(2)]


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


def took(record, seconds, *, gpu_s=None, status=Status.OK):
    return replace(record, outcome=Outcome(verdict=Verdict(status=status), work=Work(wall_s=seconds, gpu_s=gpu_s)))


@pytest.fixture
def clock():
    return Clock()


def tally_of(specs, clock, **settings):
    records = builders.records(specs)
    return SweepTally([builders.planned(record) for record in records], clock=clock, **settings), records


def test_every_trial_is_done_running_or_waiting(clock):
    tally, records = tally_of(SMALL, clock)
    for record in records[:2]:
        tally.started(builders.planned(record))
    tally.finished(builders.planned(records[0]), took(records[0], 3.0))
    tally.lost(builders.planned(records[1]))
    state = tally.state()
    assert (state.done, state.running, state.waiting, state.lost, state.repeated) == (1, 0, 3, 1, 0)
    assert (state.nodes, state.nodes_busy) == (1, 0)
    tally.started(builders.planned(records[1]))
    assert (tally.state().repeated, tally.state().running, tally.state().nodes_busy) == (1, 1, 1)


def test_the_time_left_counts_longer_trials_for_more(clock):
    tally, records = tally_of([*SMALL, *LARGE], clock)
    assert tally.state().left_s is None
    small, large = records[:4], records[4:]
    for record, seconds in ((small[0], 10.0), (small[1], 10.0), (large[0], 40.0)):
        tally.finished(builders.planned(record), took(record, seconds))
    clock.now_s = 30.0  # two at a time
    # Two small trials and a large one are left: as much as is done.
    assert tally.state().left_s == pytest.approx(30.0)


def test_gpus_and_money_are_those_of_measured_trials(clock):
    specs = [builders.spec(backend=Backend.CUDA, gpu=None, seed=seed, num_processes=2) for seed in range(3)]
    price = Money(amount=36.0, currency="EUR")
    tally, records = tally_of(specs, clock, price_of=lambda _: price, at=Machines(gpus=4))
    assert tally.state().left_cost is None  # no trial has shown how long one takes
    tally.finished(builders.planned(records[0]), took(records[0], 60.0, gpu_s=100.0))
    tally.started(builders.planned(records[1]))
    state = tally.state()
    assert (state.gpus, state.gpus_busy) == (4, 2)
    assert state.left_cost == Money(amount=2.0, currency="EUR")
    tally.machines(Machines(nodes=3, gpus=12))
    assert (tally.state().nodes, tally.state().gpus, tally.state().nodes_busy) == (3, 12, None)


def test_simulated_trials_cost_no_gpu(clock):
    tally, records = tally_of(SMALL, clock)
    tally.finished(builders.planned(records[0]), took(records[0], 5.0))
    assert (tally.state().left_cost, tally.state().gpus_busy) == (None, 0)


def test_other_machines_count_once(clock):
    found = {}
    tally, records = tally_of(SMALL, clock, other_machines=lambda: OtherMachines(**found))
    ids = [record.trial_id for record in records]
    tally.started(builders.planned(records[0]))
    found |= {"done": frozenset({ids[1], "of another plan"}), "lost": 1, "repeated": 1}
    found |= {"running": {ids[0]: "self", ids[2]: "b", ids[3]: THIS_MACHINE, "of another plan": "c"}}
    state = tally.state()
    assert (state.done, state.done_by_others, state.running, state.waiting) == (1, 1, 3, 0)
    assert dict(state.running_by_others) == {"b": 1, THIS_MACHINE: 1}
    assert (state.lost, state.repeated, state.nodes) == (1, 1, 2)
    # What was published by this sweep is in the list of records too.
    tally.finished(builders.planned(records[0]), took(records[0], 1.0))
    found["done"] = frozenset(ids[:2])
    tally.finished(builders.planned(records[1]), took(records[1], 1.0))
    assert (tally.state().done, tally.state().done_by_others) == (2, 1)


def test_an_implied_trial_says_nothing_about_the_time_of_others(clock):
    specs = [builders.spec(backend=Backend.CUDA, gpu=None, seed=seed) for seed in range(3)]
    tally, records = tally_of(specs, clock, price_of=lambda _: Money(amount=3600.0))
    tally.finished(builders.planned(records[0]), took(records[0], 8.0, gpu_s=8.0))
    tally.finished(builders.planned(records[1]), took(records[1], None, status=Status.IMPLIED))
    assert tally.state().left_cost == Money(amount=8.0)
