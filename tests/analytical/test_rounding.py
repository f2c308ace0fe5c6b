"""Rounding by `roundup_power2_divisions`: numbers by hand, and the rounding of the allocator."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trial_strategies import architecture, specs

from profiler.allocator import parse_alloc_conf
from profiler.allocator.settings import block_bytes
from profiler.analytical import estimate
from profiler.analytical.formulas.models.trained import all_gradients
from profiler.analytical.formulas.models.weights import weights
from profiler.analytical.formulas.sizes.quantities import Coded
from profiler.analytical.formulas.sizes.rounding import block_of, divisions_by_interval
from profiler.domain.trials.trial import Backend, TrialSpec

_SPEC = TrialSpec(backend=Backend.SIMULATED, gpu="h100-80gb", model="qwen2.5-0.5b")
_EIGHT = "roundup_power2_divisions:8"
_TEXTS = st.sampled_from(
    [
        "",
        "expandable_segments:True",
        "roundup_power2_divisions:1",
        _EIGHT,
        "expandable_segments:True, roundup_power2_divisions:4,max_split_size_mb:256",
        "roundup_power2_divisions:[4:2,>:8]",
        "roundup_power2_divisions:[1:4,16:0,256:16],expandable_segments:True",
        "roundup_power2_divisions:[>:8]",
    ]
)


def _block(text):
    return block_of(replace(_SPEC, alloc_conf=text))


def test_blocks_by_hand():
    assert _block(_EIGHT)(1_200_000) == 1_310_720
    # a power of two is a step itself; up to 512 x 8 nothing is rounded
    assert _block(_EIGHT)(1 << 25) == 1 << 25
    assert _block(_EIGHT)(4_096) == 4_096
    assert _block(_EIGHT)(4_097) == 4_608
    assert _block("")(1_200_000) == 1_200_000
    assert divisions_by_interval("roundup_power2_divisions:[4:2,>:8]") == (2,) * 3 + (8,) * 13


@given(text=_TEXTS, size=st.integers(1, 1 << 42))
def test_blocks_are_those_of_the_allocator(text, size):
    config = parse_alloc_conf(text)
    found = _block(text)(size)

    assert divisions_by_interval(text) == config.roundup_power2_divisions
    assert -(-found // 512) * 512 == block_bytes(size, config)
    assert found >= size


@given(texts=st.lists(_TEXTS, min_size=2, max_size=5), size=st.integers(0, 1 << 42))
def test_columns_are_rounded_row_by_row(texts, size):
    values = tuple(dict.fromkeys(texts))
    codes = np.array([values.index(text) for text in texts])
    trials = replace(_SPEC, alloc_conf=Coded(values=values, codes=codes))

    assert np.broadcast_to(block_of(trials)(size), len(texts)).tolist() == [_block(text)(size) for text in texts]
    many = np.full(len(texts), size)
    assert np.asarray(block_of(trials)(many)).tolist() == [_block(text)(size) for text in texts]


def test_each_tensor_is_rounded_separately(half_billion):
    rounded = replace(_SPEC, alloc_conf=_EIGHT)
    # embedding; q and o; k and v; gate, up and down; the norms and biases of 1,792 and 256 B stay below 4,096 B
    layer = 2 * 1_703_936 + 2 * 229_376 + 3 * 9_437_184 + 2 * 1_792 + 1_792 + 2 * 256
    whole = 301_989_888 + 24 * layer + 1_792

    assert all_gradients(rounded, half_billion).size == whole
    assert weights(rounded, half_billion).size == whole + 2 * 32 * 4


@given(specs(), st.sampled_from([2, 4, 8, 16]))
def test_an_estimate_grows_by_less_than_a_division(spec, divisions):
    plain, rounded = (
        estimate(replace(spec, alloc_conf=text), architecture(spec.model))
        for text in ("", f"roundup_power2_divisions:{divisions}")
    )

    assert plain.peak_allocated_bytes <= rounded.peak_allocated_bytes
    assert rounded.peak_allocated_bytes <= plain.peak_allocated_bytes * (1 + 1 / divisions)


@pytest.mark.parametrize("text", ["roundup_power2_divisions:8", "roundup_power2_divisions:[>:8]"])
def test_reserved_memory_is_rounded_too(half_billion, text):
    plain, rounded = (estimate(replace(_SPEC, alloc_conf=each), half_billion) for each in ("", text))

    assert rounded.peak_reserved_bytes > plain.peak_reserved_bytes
