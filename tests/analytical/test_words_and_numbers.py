"""The words of a number agree with it: products of factors are the number, and those of a sum are within it."""

import re
from dataclasses import replace
from math import prod

import pytest
from estimate_sample import trial_groups, with_rewards
from hypothesis import given
from trial_strategies import architecture, specs

from profiler.analytical.formulas.sizes.quantities import LONGEST, NOTHING, Term
from profiler.analytical.timeline.instants import Instant, InstantName
from profiler.analytical.timeline.recipes.registry import trial_instants
from profiler.domain.memory import Category, Phase
from profiler.domain.trials.trial import SHARDED

FACTOR = r"[\d.]+(?:e\d+)?"
PRODUCT = re.compile(rf"({FACTOR}(?: parameters)?(?: x {FACTOR})+ B)([^+]* / \d+ GPUs)?")
STACK = re.compile(r"^(\d+) inputs of (\d+) tokens")
ROUNDING = 0.01
"""Counts are written with three digits, and buffers of some hundred bytes are left out."""


def product_bytes(text):
    """Return the bytes of a product in words, and whether the words are this product alone."""
    found = PRODUCT.search(text)
    if found is None:
        return 0, False
    factors, gpus = found.groups()
    size = prod(float(each) for each in re.findall(FACTOR, factors))
    size = size / int(gpus.split()[-2]) if gpus else size
    # What is sharded is rounded up, parameter by parameter.
    return size, found.group(0) == text and not gpus


def disagreements(instants, shape, element):
    """Return the categories of instants whose words name more bytes than there are, or others."""
    found = []
    for instant in instants:
        for category, text in instant.words().items():
            size = int(instant.sizes[category])
            named, is_all = product_bytes(text)
            if stacked := STACK.match(text):
                named = prod(int(each) for each in stacked.groups()) * shape.hidden_size * element
            if "..." in text:
                continue
            if named > (1 + ROUNDING) * size + 1_000 or (is_all and named < (1 - ROUNDING) * size - 1_000):
                found.append((instant.phase, instant.name, category, size, text))
    return found


@given(specs())
def test_words_name_the_factors_of_their_number(spec):
    exact = replace(spec, alloc_conf="")
    shape = architecture(spec.model)
    element = 2 if "16" in spec.dtype else 4
    assert disagreements(trial_instants(exact, shape), shape, element) == []


def test_words_name_the_factors_of_their_number_in_the_sample():
    """Evaluations, critics, reward models, engines, towers and shardings too."""
    for specs_of_group in trial_groups().values():
        for spec in specs_of_group:
            exact, shape = replace(spec, alloc_conf=""), with_rewards(spec)
            instants = trial_instants(exact, shape)
            # FSDP gathers weights of any type in bfloat16, and DeepSpeed casts them.
            is_narrow = "16" in spec.dtype or spec.distributed_type in SHARDED
            assert disagreements(instants, shape, 2 if is_narrow else 4) == [], spec
            for instant in instants:
                assert all(0 < len(text) <= LONGEST for text in instant.words().values()), (spec, instant.words())


def test_a_number_that_disagrees_with_its_words_is_found():
    """Twice and half of what the words say, alone; and less than a part of a sum."""

    def found(size, text):
        terms = {Category.GRADIENTS: Term(size, lambda: text)}
        return disagreements([Instant(phase=Phase.FORWARD, name=InstantName.STEP, terms=terms)], None, 2)

    assert not found(2_000_000, "1e6 x 2 B")
    assert found(4_000_000, "1e6 x 2 B")
    assert found(1_000_000, "1e6 x 2 B")
    assert found(1_000_000, "1e6 x 2 B + a tied head's")
    assert not found(3_000_000, "1e6 x 2 B + a tied head's")
    assert found(500_000, "1e6 parameters x 4 B / 4 GPUs")
    assert not found(1_000_000, "1e6 parameters x 4 B / 4 GPUs")


def test_the_words_of_a_sum_are_those_of_its_parts():
    one, two, unnamed = Term(2, lambda: "one"), Term(3, lambda: "two"), Term(5)
    assert (one.plus(two).size, one.plus(two).text) == (5, "one + two")
    assert one.plus(unnamed).plus(two).text == "one + two"
    assert one.plus(Term(0, lambda: "nothing")).text == "one"
    assert one.including(two).text == "one"
    assert Term(0, lambda: "nothing").including(two).text == "two"
    assert one.only_if(False) == (0, one.words)
    assert NOTHING.plus(one).text == "one"


@pytest.mark.parametrize("size", [0, 1])
def test_nothing_has_no_words(size):
    assert Term(size, lambda: "words").text == ("words" if size else "")
