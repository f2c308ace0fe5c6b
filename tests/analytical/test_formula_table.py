"""Formulas as one table: each number by hand, and three properties of all of them."""

import pytest
from formula_row import as_array
from formula_rows_head import HEAD_ROWS, ROLLOUT_ROWS
from formula_rows_layers import ATTENTION_ROWS, LAYER_ROWS
from formula_rows_models import MODEL_ROWS, OPTIMIZER_ROWS
from formula_rows_others import COUNT_ROWS, ENGINE_ROWS, EXPERT_ROWS, TOWER_ROWS, VERL_ROWS
from hypothesis import given, settings
from hypothesis import strategies as st

ROWS = (
    *(*LAYER_ROWS, *ATTENTION_ROWS, *HEAD_ROWS, *ROLLOUT_ROWS, *MODEL_ROWS, *OPTIMIZER_ROWS),
    *(*COUNT_ROWS, *EXPERT_ROWS, *TOWER_ROWS, *ENGINE_ROWS, *VERL_ROWS),
)
PAIRS = [(row, what) for row in ROWS for what in row.growing()]
EXAMPLES = settings(max_examples=10)
"""Each example asks all rows."""
FACTORS = st.lists(st.integers(1, 200), min_size=2, max_size=4)


def _name(row):
    return f"{row.formula.__name__}{f'.{row.part}' if row.part else ''}"


@pytest.mark.parametrize("row", ROWS, ids=_name)
def test_by_hand(row):
    assert row.bytes_of(row.arguments, row.keys) == row.size, row.working


@EXAMPLES
@given(factors=FACTORS)
def test_arrays_have_the_numbers_of_single_ones(factors):
    for row, what in PAIRS:
        if not row.of_arrays:
            continue
        many = row.scaled(what, as_array(factors)) + as_array([0] * len(factors))
        assert many.tolist() == [row.scaled(what, factor) for factor in factors], (row, what)


@EXAMPLES
@given(factors=FACTORS)
def test_more_never_needs_less(factors):
    for row, what in PAIRS:
        sizes = [row.scaled(what, factor) for factor in (1, *sorted(factors))]
        assert sizes[0] == row.size
        assert row.can_fall or sizes == sorted(sizes), (row, what)


@EXAMPLES
@given(factors=FACTORS)
def test_bytes_are_whole_and_never_negative(factors):
    for row, what in PAIRS:
        for size in (row.scaled(what, factor) for factor in factors):
            assert type(size) is int, (row, what)
            assert size >= 0 or (row.can_fall and row.size < 0), (row, what)


def test_the_table_is_wide():
    """A table that shrinks would prove nothing: rows, formulas, and those whose arguments can grow."""
    assert len(ROWS) >= 290
    assert len({row.formula for row in ROWS}) >= 80
    assert len({row.formula for row, _ in PAIRS}) >= 70
    assert sum(row.can_fall for row in ROWS) <= 3
