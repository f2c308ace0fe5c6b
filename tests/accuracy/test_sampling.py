from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maintenance.accuracy.baselines import accelerate_bytes, verl_report_bytes
from maintenance.accuracy.sampling import AXES, FIXED, NEXT_SAMPLE, sample
from maintenance.samples.sampling import architecture_of, read_sampled, sampled_text
from profiler.analytical import estimate
from profiler.config.models.architecture import PROJECTION_NAMES
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import UsageError
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import (
    ALL_LINEAR,
    TRIAL_KEYS,
    Attention,
    Backend,
    Dtype,
    Lengths,
    Logprobs,
    Rollout,
    TrialSpec,
    Tuning,
)

_SEED = 2029
_SAMPLED = sample(500, seed=_SEED)
_ENUMERATED = {
    "model": BUILTIN_MODELS,
    "gpu": KNOWN_GPUS,
    "tuning": Tuning,
    "optim": Optimizer,
    "lengths": Lengths,
    "gradient_checkpointing": (True, False),
    "attn_implementation": Attention,
    "dtype": Dtype,
    "bf16": (True, False),
    "logprobs": [each for each in Logprobs if each.is_of_completions],
    "rollout": Rollout,
}
_WIDEN = "Add the value to AXES in maintenance/accuracy/sampling.py, choose a new seed and sample anew."


def test_samples_differ_by_trial_and_repeat_by_seed():
    assert len(set(_SAMPLED)) == len(_SAMPLED) == 500
    assert sample(20, seed=_SEED) == _SAMPLED[:20]
    assert sample(20, seed=1) != _SAMPLED[:20]


@pytest.mark.parametrize("key", _ENUMERATED)
def test_every_allowed_value_is_in_the_axes_and_in_the_sample(key):
    missing = set(map(str, _ENUMERATED[key])) - {str(value) for value in (*AXES[key], *NEXT_SAMPLE.get(key, ()))}
    assert not missing, f"{key}={sorted(missing)} is never sampled. {_WIDEN}"
    assert {str(getattr(spec, key)) for spec in _SAMPLED} == set(map(str, AXES[key]))


def test_every_key_is_sampled_or_fixed():
    assert set(AXES) | set(FIXED) == {key.name for key in TRIAL_KEYS if Recipe.GRPO in key.recipes}, _WIDEN
    assert not set(AXES) & set(FIXED)


def test_other_keys_take_all_their_values():
    assert {spec.alloc_conf for spec in _SAMPLED} == {text or "" for text in AXES["alloc_conf"]}
    assert {(spec.dtype, spec.bf16) for spec in _SAMPLED} == {
        (dtype, bf16) for dtype in Dtype for bf16 in (True, False)
    }
    names = {name for targets in AXES["lora_target_modules"] for name in targets}
    assert names == {ALL_LINEAR, *PROJECTION_NAMES, "embed_tokens"}, _WIDEN
    for key in ("beta", "steps", "num_generations", "max_prompt_length", "max_completion_length"):
        assert {getattr(spec, key) for spec in _SAMPLED} == set(AXES[key]), key
    most = Counter(spec.model for spec in _SAMPLED).most_common(1)[0][1]
    assert most < 500 / len(AXES["model"]) * 2


@settings(max_examples=10)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 15))
def test_what_is_written_down_is_what_is_read(seed, count):
    sampled = sample(count, seed=seed)

    assert read_sampled(sampled_text(sampled, seed=seed)) == sampled


def test_every_sampled_trial_has_an_estimate():
    for spec in _SAMPLED:
        found = estimate(spec, architecture_of(spec.model))
        assert 0 < found.peak_allocated_bytes <= (found.peak_reserved_bytes or 0)


def test_a_model_that_is_not_built_in_cannot_be_sampled():
    with pytest.raises(UsageError):
        architecture_of("nobody/nothing")


def test_baselines_by_hand():
    spec = TrialSpec(backend=Backend.SIMULATED, gpu="h200-141gb", model="qwen2.5-0.5b")
    # 4 x weights of 2 B, 4 rows of 1,042 tokens x 896 x 24 layers x 2 B / 4, and 2 GB
    by_report = 4 * 494_032_768 * 2 + 4 * 1_042 * 896 * 24 * 2 // 4 + 2_000_000_000

    assert verl_report_bytes(spec) == by_report
    # the library's own words: two float32 states are the largest of its components; 8 B a parameter, and buffers
    assert accelerate_bytes(spec) == pytest.approx(8 * 494_032_768, rel=1e-3)


def test_the_kept_file_equals_the_sample():
    kept = Path(__file__).parents[2] / "results" / "reference" / "accuracy" / "sampled.jsonl"

    assert kept.read_text() == sampled_text(_SAMPLED, seed=_SEED)
