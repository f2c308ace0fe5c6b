"""Growth of memory over the steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.domain.memory import GIB, MIB
from profiler.measurement.samples.summary import SAME_BYTES, growth


@pytest.mark.parametrize(
    ("peaks_gib", "settled_step", "slope_gib"),
    [
        ([], None, None),
        ([10], None, None),
        ([10, 14, 14], 2, 0.0),
        ([10, 14, 14, 14], 2, 0.0),
        ([14, 10, 10, 10], 1, -1.2),
        ([10, 14, 15, 16], None, 1.0),
        ([10, 14], None, None),
    ],
)
def test_by_hand(peaks_gib, settled_step, slope_gib):
    found = growth([peak * GIB for peak in peaks_gib])
    assert found.settled_step == settled_step
    if slope_gib is None:
        assert found.slope_bytes_per_step is None
    else:
        assert found.slope_bytes_per_step == pytest.approx(slope_gib * GIB)


def test_differences_of_small_blocks_are_not_growth():
    assert growth([10 * GIB, 14 * GIB, 14 * GIB + MIB // 2, 14 * GIB + MIB]).settled_step == 2


@given(st.lists(st.integers(0, 100).map(lambda size: size * GIB), min_size=1, max_size=9))
def test_no_step_after_the_settled_one_is_higher(peaks):
    settled = growth(peaks).settled_step
    if settled is None:
        assert all(peak < peaks[-1] - SAME_BYTES for peak in peaks[:-1])
    else:
        assert max(peaks[settled - 1 :]) <= peaks[settled - 1] + SAME_BYTES
