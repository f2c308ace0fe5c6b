"""Formulas as one table: each number by hand, and three properties of all of them."""

import pytest
from formula_row import as_array
from formula_rows_head import HEAD_ROWS, ROLLOUT_ROWS
from formula_rows_layers import ATTENTION_ROWS, LAYER_ROWS
from formula_rows_models import MODEL_ROWS, OPTIMIZER_ROWS
from hypothesis import given
from hypothesis import strategies as st

ROWS = (*LAYER_ROWS, *ATTENTION_ROWS, *HEAD_ROWS, *ROLLOUT_ROWS, *MODEL_ROWS, *OPTIMIZER_ROWS)
PAIRS = [(row, what) for row in ROWS for what in row.growing()]
FACTORS = st.lists(st.integers(1, 200), min_size=2, max_size=4)


def _name(row):
    return f"{row.formula.__name__}{f'.{row.part}' if row.part else ''}"


@pytest.mark.parametrize("row", ROWS, ids=_name)
def test_by_hand(row):
    assert row.bytes_of(row.arguments, row.keys) == row.size, row.working


@given(pair=st.sampled_from(PAIRS), factors=FACTORS)
def test_arrays_have_the_numbers_of_single_ones(pair, factors):
    row, what = pair
    many = row.scaled(what, as_array(factors))
    one_by_one = [row.scaled(what, factor) for factor in factors]
    assert (many + as_array([0] * len(factors))).tolist() == one_by_one


@given(pair=st.sampled_from([pair for pair in PAIRS if not pair[0].can_fall]), factors=FACTORS)
def test_more_never_needs_less(pair, factors):
    row, what = pair
    sizes = [row.scaled(what, factor) for factor in sorted(factors)]
    assert sizes == sorted(sizes)
    assert sizes[0] >= row.scaled(what, 1) == row.size


@given(pair=st.sampled_from(PAIRS), factors=FACTORS)
def test_bytes_are_whole_and_never_negative(pair, factors):
    row, what = pair
    for factor in factors:
        size = row.scaled(what, factor)
        assert type(size) is int
        assert size >= 0 or (row.can_fall and row.size < 0)


def test_the_table_is_wide():
    """A table that shrinks would prove nothing: rows, formulas, and those whose arguments can grow."""
    assert len(ROWS) >= 180
    assert len({row.formula for row in ROWS}) >= 45
    assert len({row.formula for row, _ in PAIRS}) >= 40
    assert sum(row.can_fall for row in ROWS) <= 4
