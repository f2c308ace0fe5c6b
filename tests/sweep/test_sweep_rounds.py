"""When a machine ends the round of a sweep, after which trials without an answer run again."""

import signal

import pytest
from sweep_fakes import FakeStore

from profiler.command_line import Interrupted
from profiler.config.options.run_options import RunOptions
from profiler.domain.errors import ProfilerError
from profiler.sweep.parts import in_round


class Store(FakeStore):
    def __init__(self):
        super().__init__()
        self.parts, self.over = [], False

    def take_part(self, trial_ids, *, marks, runs_all):
        self.parts.append((trial_ids, marks, runs_all))

    def end_round(self):
        self.over = True


def test_a_plan_that_is_done_ends_its_round():
    store = Store()
    with in_round(store, ["a"], RunOptions(), None):
        assert not store.over
    assert store.over
    assert store.parts == [(["a"], None, False)]


@pytest.mark.parametrize(
    ("error", "is_over"),
    [
        (Interrupted(signal.SIGINT), True),
        (ProfilerError("Stopped: 5 trials."), True),
        (Interrupted(signal.SIGTERM), False),
        (Interrupted(signal.SIGHUP), False),
    ],
)
def test_a_machine_that_is_taken_away_leaves_the_round_to_others(error, is_over):
    store = Store()
    with pytest.raises(type(error)), in_round(store, ["a"], RunOptions(), None):
        raise error
    assert store.over is is_over


@pytest.mark.parametrize("options", [{"resume": False}, {"snapshot": True}, {"breakdown": True}])
def test_where_trials_with_an_answer_may_run_again_they_are_marked_too(options):
    store = Store()
    with in_round(store, ["a"], RunOptions(**options), None):
        assert store.parts[0][2]
