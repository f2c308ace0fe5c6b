"""The reader of step shapes accepts what is written, and finds the same mistakes as the reader of any dataclass."""

import pytest

from profiler.domain.memory import Category, Phase
from profiler.domain.runs.readings import CategoryShare, StepInstant
from profiler.domain.runs.step_shape import StepShape
from profiler.storage.files.typed_json import JsonMismatchError, to_json
from profiler.storage.records.outcome_fields import step_shape_from_json

INSTANTS = (
    StepInstant(phase=Phase.FORWARD, shares=(CategoryShare(category=Category.LOGITS, size_bytes=5),)),
    StepInstant(phase=Phase.BACKWARD, shares=()),
)


def test_what_was_written_is_read():
    assert to_json(StepShape.of(INSTANTS)) == to_json(INSTANTS)
    found = step_shape_from_json(to_json(INSTANTS))
    assert isinstance(found, StepShape)
    assert found == INSTANTS


SHARE = {"category": "logits", "size_bytes": 5}


@pytest.mark.parametrize(
    ("stored", "problem"),
    [
        ({}, "expected a list"),
        (None, "expected a list"),
        (["forward"], "expected an object"),
        ([{"phase": "forward"}], "keys missing or unknown: shares"),
        ([{"phase": "forward", "shares": [], "more": 1}], "keys missing or unknown: more"),
        ([{"phase": "forwards", "shares": []}], "phase: 'forwards' is not one of"),
        ([{"phase": ["forward"], "shares": []}], "is not one of"),
        ([{"phase": "forward", "shares": {}}], "shares: expected a list"),
        ([{"phase": "forward", "shares": [SHARE, 3]}], "shares: expected an object"),
        ([{"phase": "forward", "shares": [SHARE | {"more": 1}]}], "keys missing or unknown: more"),
        ([{"phase": "forward", "shares": [SHARE | {"category": "logit"}]}], "category: 'logit' is not one of"),
        ([{"phase": "forward", "shares": [SHARE | {"size_bytes": 5.0}]}], "size_bytes: 5.0 is not int"),
        ([{"phase": "forward", "shares": [SHARE | {"size_bytes": True}]}], "size_bytes: True is not int"),
        ([{"phase": "forward", "shares": [SHARE | {"size_bytes": 2**63}]}], "is too large"),
        ([{"phase": "forward", "shares": [SHARE] * 256}], "is too large"),
    ],
)
def test_anything_else_is_refused(stored, problem):
    with pytest.raises(JsonMismatchError, match=problem):
        step_shape_from_json(stored)
