"""What a trial's end implies for trials that need at least as much memory."""

from dataclasses import replace

import builders
import pytest

from profiler.domain.runs.outcome import Status
from profiler.execution.trials import Pruning

SMALL = builders.spec(max_completion_length=256)
LARGE = replace(SMALL, max_completion_length=1024)


def ended(status):
    return builders.record(SMALL, outcome=builders.outcome_of(status))


def trial_of(spec):
    return builders.planned(builders.record(spec, outcome=builders.outcome_of()))


def taught(*records, needs_at_most=lambda less, more: less.max_completion_length <= more.max_completion_length):
    pruning = Pruning(needs_at_most=needs_at_most)
    pruning.learn(records)
    return pruning


@pytest.mark.parametrize("status", Status)
def test_only_a_trial_that_ran_out_of_memory_implies_others(status):
    """An implied one is left out too: its sentence would name a trial that has not run."""
    found = taught(ended(status)).implied(trial_of(LARGE))
    assert (found is not None) == (status is Status.OOM)


def test_an_implied_outcome_names_the_trial_that_ran_out():
    cause = ended(Status.OOM)
    found = taught(cause).implied(trial_of(LARGE))
    assert (found.status, found.verdict.implied_by) == (Status.IMPLIED, cause.trial_id)
    assert found.peaks.allocated_bytes is None
    assert cause.trial_id in found.message


def test_nothing_follows_for_the_trial_itself_for_a_smaller_one_and_for_another_group():
    assert taught(ended(Status.OOM)).implied(trial_of(SMALL)) is None
    assert taught(ended(Status.OOM)).implied(trial_of(replace(SMALL, max_completion_length=128))) is None
    apart = Pruning(needs_at_most=lambda less, more: True, group_of=lambda spec: spec.max_completion_length)
    apart.learn([ended(Status.OOM)])
    assert apart.implied(trial_of(LARGE)) is None
