from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.accuracy.rivals import accelerate_bytes, verl_report_bytes
from profiler.accuracy.sampling import AXES, architecture_of, draw, drawn_text, read_drawn
from profiler.analytical import estimate
from profiler.domain.errors import UsageError
from profiler.domain.optimizers import Optimizer
from profiler.domain.trial import Attention, Backend, Dtype, Lengths, Logprobs, TrialSpec, Tuning

_DRAWN = draw(500, seed=2028)


def test_what_is_drawn_is_different_and_the_same_every_time():
    assert len(set(_DRAWN)) == len(_DRAWN) == 500
    assert draw(20, seed=2028) == _DRAWN[:20]
    assert draw(20, seed=1) != _DRAWN[:20]


def test_everything_that_decides_memory_is_drawn():
    for key, kinds in (
        ("tuning", Tuning),
        ("optim", Optimizer),
        ("lengths", Lengths),
        ("logprobs", Logprobs),
        ("attn_implementation", Attention),
    ):
        assert {getattr(spec, key) for spec in _DRAWN} == set(kinds), key
    assert {spec.dtype for spec in _DRAWN} == {Dtype.BFLOAT16, Dtype.FLOAT32}
    assert {spec.model for spec in _DRAWN} == set(AXES["model"])
    assert {spec.gradient_checkpointing for spec in _DRAWN} == {True, False}
    most = Counter(spec.model for spec in _DRAWN).most_common(1)[0][1]
    assert most < 500 / len(AXES["model"]) * 2


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 15))
def test_what_is_written_down_is_what_is_read(seed, count):
    drawn = draw(count, seed=seed)

    assert read_drawn(drawn_text(drawn, seed=seed)) == drawn


def test_every_drawn_trial_has_an_estimate():
    for spec in _DRAWN:
        found = estimate(spec, architecture_of(spec.model))
        assert 0 < found.peak_allocated_bytes <= (found.peak_reserved_bytes or 0)


def test_a_model_that_is_not_built_in_cannot_be_drawn():
    with pytest.raises(UsageError):
        architecture_of("nobody/nothing")


def test_rivals_by_hand():
    spec = TrialSpec(backend=Backend.SIMULATED, gpu="h200-141gb", model="qwen2.5-0.5b")
    # 4 x weights of 2 B, 4 rows of 1,042 tokens x 896 x 24 layers x 2 B / 4, and 2 GB
    by_report = 4 * 494_032_768 * 2 + 4 * 1_042 * 896 * 24 * 2 // 4 + 2_000_000_000

    assert verl_report_bytes(spec) == by_report
    # the library's own words: two float32 states are the largest of its components; 8 B a parameter, and buffers
    assert accelerate_bytes(spec) == pytest.approx(8 * 494_032_768, rel=1e-3)


def test_the_kept_file_is_what_is_drawn():
    kept = Path(__file__).parents[2] / "results" / "reference" / "accuracy" / "drawn.jsonl"

    assert kept.read_text() == drawn_text(_DRAWN, seed=2028)
