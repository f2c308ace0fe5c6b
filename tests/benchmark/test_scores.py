"""Scores, worked by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_set import peaks, row

from maintenance.benchmark.ranking.scores import CARDS_GIB, compared, scores
from profiler.domain.runs.shared import Metric

GIB = 1 << 30


def rows_of(*sizes_gib):
    return [row(row_id=str(place), peaks=peaks(allocated=size * GIB)) for place, size in enumerate(sizes_gib)]


def said(*sizes_gib):
    return {str(place): {"allocated": int(size * GIB)} for place, size in enumerate(sizes_gib) if size is not None}


def test_scores_of_four_rows_are_those_of_paper():
    # Errors: -50 %, +10 %, 0 %; the fourth row is not covered.
    found = scores(rows_of(20, 10, 40, 100), said(10, 11, 40, None))
    assert (found.rows, found.answered, found.compared) == (4, 3, 3)
    assert found.coverage == 0.75
    assert found.median_error == pytest.approx(0.1)
    # Sorted sizes 0, 0.1, 0.5: the 95th percentile is nine tenths of the way from the second to the third.
    assert found.p95_error == pytest.approx(0.1 + 0.9 * 0.4)
    assert found.too_low == pytest.approx(1 / 3)
    assert found.worst_too_low == pytest.approx(-0.5)


def test_a_verdict_is_about_each_card():
    # 20 GiB fit on 24, 40, 48 and 80; 10 GiB predicted fit on 16 as well: one of five verdicts is a wrong "fits".
    assert CARDS_GIB == (16, 24, 40, 48, 80)
    low = scores(rows_of(20), said(10))
    assert (low.right_verdicts, low.wrong_fits) == (0.8, 0.2)
    # 30 GiB predicted do not fit on 24: wrong, and not a wrong "fits".
    high = scores(rows_of(20), said(30))
    assert (high.right_verdicts, high.wrong_fits) == (0.8, 0.0)
    # What is as large as a card fits on it.
    assert scores(rows_of(40), said(40)).right_verdicts == 1.0


def test_what_is_not_covered_is_not_wrong():
    found = scores(rows_of(20, 10), {})
    assert (found.coverage, found.compared, found.median_error, found.right_verdicts) == (0.0, 0, None, None)
    assert found.worst_too_low is None


def test_a_row_without_a_peak_is_not_counted():
    found = scores([*rows_of(20), row(row_id="died", peaks=())], said(20))
    assert (found.rows, found.answered) == (1, 1)


def test_nothing_too_low_has_no_worst():
    found = scores(rows_of(20, 10), said(21, 10))
    assert (found.too_low, found.worst_too_low) == (0.0, 0.0)


def test_the_first_metric_that_both_have_is_compared():
    both = row(peaks=peaks(allocated=10 * GIB, reserved=12 * GIB, device=13 * GIB))
    assert compared(both, {"device": GIB, "reserved": GIB}).metric is Metric.RESERVED
    assert compared(both, {"device": GIB, "allocated": GIB}).metric is Metric.ALLOCATED
    assert compared(both, {"device": GIB}).actual_bytes == 13 * GIB
    assert compared(row(peaks=peaks(reserved=GIB)), {"allocated": GIB}) is None


@given(st.lists(st.tuples(st.integers(1, 200), st.integers(1, 200)), min_size=1, max_size=20))
def test_scores_are_shares_and_agree_with_each_other(pairs):
    found = scores(rows_of(*(actual for actual, _ in pairs)), said(*(predicted for _, predicted in pairs)))
    assert 0 <= found.median_error <= found.p95_error
    assert found.wrong_fits <= 1 - found.right_verdicts
    assert (found.too_low > 0) == (found.worst_too_low < 0)
    perfect = scores(rows_of(*(actual for actual, _ in pairs)), said(*(actual for actual, _ in pairs)))
    assert (perfect.p95_error, perfect.right_verdicts, perfect.too_low) == (0.0, 1.0, 0.0)
