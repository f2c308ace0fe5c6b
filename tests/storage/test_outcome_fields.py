"""The flat form of an outcome on disk, and back."""

import json
from dataclasses import fields, replace

import builders
import pytest

from profiler.domain.memory import Category
from profiler.domain.runs.outcome import Breakdown, BreakdownStatus, Outcome, Status
from profiler.domain.runs.readings import CategoryShare
from profiler.storage.files.typed_json import JsonMismatchError, to_json
from profiler.storage.records.outcome_fields import OUTCOME_FIELDS, flat_values, not_measured, outcome_from_flat

SHARE = CategoryShare(category=Category.WEIGHTS, size_bytes=1)


def stored(outcome):
    return json.loads(json.dumps({key: to_json(value) for key, value in flat_values(outcome).items()}))


def test_every_attribute_of_every_part_is_one_key():
    whole = builders.changed(builders.outcome(builders.spec()), gpu_uuid="GPU-1", emulated_values="complete")
    attributes = [(part.name, each.name) for part in fields(Outcome) for each in fields(getattr(whole, part.name))]
    # `not_measured` holds the problem of the breakdown as well.
    assert sorted(OUTCOME_FIELDS.values()) == sorted(set(attributes) - {("breakdown", "problem")})


@pytest.mark.parametrize("unavailable", ["", "power: absent; context: unknown"])
@pytest.mark.parametrize("problem", ["", "its own run ended with ValueError: a; breakdown: b"])
def test_the_problem_of_a_breakdown_and_unavailable_figures_share_a_key(unavailable, problem):
    measured = builders.outcome_of(gpu_uuid="GPU-1", not_measured=unavailable)
    outcome = replace(measured, breakdown=Breakdown(problem=problem))
    assert not_measured(outcome) == "; ".join(filter(None, [unavailable, problem and f"breakdown: {problem}"]))
    assert outcome_from_flat(stored(outcome), defaults=False) == outcome


def test_parts_without_a_value_are_none():
    read = outcome_from_flat(stored(builders.failed()), defaults=False)
    assert (read.unlimited, read.measured, read.status) == (None, None, Status.FAILED)
    assert outcome_from_flat({"status": "ok"}, defaults=True) == builders.outcome_of()


def test_a_simulation_without_its_peak_is_refused():
    values = stored(builders.outcome(builders.spec())) | {"required_allocated_bytes": None, "step_shape": [{}]}
    with pytest.raises(JsonMismatchError):
        outcome_from_flat(values, defaults=False)


def test_a_breakdown_is_known_absent_or_failed():
    found = [Breakdown(shares=(SHARE,)), Breakdown(), Breakdown(problem="no trace")]
    assert [each.status for each in found] == [BreakdownStatus.KNOWN, BreakdownStatus.ABSENT, BreakdownStatus.FAILED]
    with pytest.raises(ValueError, match="no trace"):
        Breakdown(shares=(SHARE,), problem="no trace")
