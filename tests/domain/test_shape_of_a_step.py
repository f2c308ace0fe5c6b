"""The shape of an optimizer step as arrays: equal to the instants that it was made of."""

import pytest

from profiler.domain.memory import Category, Phase
from profiler.domain.runs.readings import CategoryShare, StepInstant
from profiler.domain.runs.step_shape import StepShape


def share(category, size):
    return CategoryShare(category=category, size_bytes=size)


INSTANTS = (
    StepInstant(phase=Phase.FORWARD, shares=(share(Category.WEIGHTS, 3), share(Category.LOGITS, 2**40))),
    StepInstant(phase=Phase.BACKWARD, shares=()),
    StepInstant(phase=Phase.OPTIMIZER, shares=(share(Category.OTHER, -1),)),
)


def test_a_shape_is_the_sequence_of_its_instants():
    shape = StepShape.of(INSTANTS)
    assert tuple(shape) == INSTANTS
    assert (shape == INSTANTS, shape == INSTANTS, shape == StepShape.of(shape)) == (True, True, True)
    assert shape != INSTANTS[:2]
    assert (len(shape), shape[-1], shape[:2]) == (3, INSTANTS[-1], INSTANTS[:2])
    assert hash(shape) == hash(INSTANTS)
    assert repr(shape) == repr(INSTANTS)


def test_an_empty_shape_is_the_empty_tuple():
    assert StepShape.of(()) == ()


def test_a_size_beyond_64_bits_is_refused():
    with pytest.raises(OverflowError):
        StepShape.of([StepInstant(phase=Phase.LOAD, shares=(share(Category.OTHER, 2**63),))])
