from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maintenance.accuracy.baselines import accelerate_bytes, verl_report_bytes
from maintenance.accuracy.sampling import (
    AXES,
    COUNT,
    MOST_DECODED_LAYERS,
    NARROWED,
    SEED,
    decoded_layers,
    is_wanted,
    sample,
)
from maintenance.samples.sampling import (
    FIXED,
    PACKED,
    architecture_of,
    config_of,
    kept_text,
    read_sampled,
    sampled_text,
    written_down,
)
from maintenance.samples.several_gpus import SAMPLES
from profiler.analytical.estimate import has_form
from profiler.config.trials.key_values import PROJECTION_NAMES
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


@cache
def _sampled() -> tuple[TrialSpec, ...]:
    """The sample. Each process of the tests imports this file, and one needs the trials."""
    return sample()


_ENUMERATED = {
    "recipe": Recipe,
    "model": BUILTIN_MODELS,
    "gpu": KNOWN_GPUS,
    "tuning": Tuning,
    "optim": Optimizer,
    "lengths": Lengths,
    "gradient_checkpointing": (True, False),
    "attn_implementation": Attention,
    "dtype": Dtype,
    "bf16": (True, False),
    "logprobs": Logprobs,
    "rollout": Rollout,
}
OF_OTHERS = tuple(each for each in Logprobs if not each.is_of_trl)
"""Losses of other programs, which `results/reference/scripts/commands.csv` judges."""
TYPES_OF_OTHERS = tuple(each for each in Dtype if not each.is_of_todays_trl)
"""Weights of other programs, which it judges too."""

_WIDEN = "Add the value to AXES in maintenance/accuracy/sampling.py, choose a new seed and sample anew."


def test_samples_differ_by_trial_and_repeat_by_seed():
    assert len(set(_sampled())) == len(_sampled()) == COUNT
    assert sample(20) == _sampled()[:20]
    assert sample(20, seed=1) != _sampled()[:20]


BUILT_IN_SINCE = ("gemma-4-26b-a4b", "gemma-4-e2b", "gemma-4-e4b", "unsloth-phi-3.5-mini", "unsloth-phi-4")
"""Not in the sample of this seed. `tests/analytical/families.json` has Gemma; those of Unsloth have Llama's layers."""


RELEASED_SINCE = ("selective_kernel",)
"""Not in the sample of this seed: jobs with trl 1.14 judge it (`results/reference/releases`)."""


@pytest.mark.parametrize("key", _ENUMERATED)
def test_every_allowed_value_is_in_the_axes_and_in_the_sample(key):
    values = {*AXES[key], *(value for _, _, fewer in NARROWED for value in fewer.get(key, ()))}
    later = {
        "optim": SAMPLES["optimizers"].axes["optim"],
        "model": BUILT_IN_SINCE,
        "logprobs": (*OF_OTHERS, *RELEASED_SINCE),
    }
    later = {**later, "dtype": TYPES_OF_OTHERS}.get(key, ())
    missing = set(map(str, _ENUMERATED[key])) - set(map(str, {*values, *later}))
    assert not missing, f"{key}={sorted(missing)} is never sampled. {_WIDEN}"
    assert {str(getattr(spec, key)) for spec in _sampled()} == set(map(str, values))


def test_every_key_is_sampled_or_fixed():
    assert set(AXES) | set(FIXED) == {key.name for key in TRIAL_KEYS}, _WIDEN


def test_families_and_attention_dropout_are_sampled():
    models = {spec.model: architecture_of(spec.model) for spec in _sampled()}
    sampled = set(BUILTIN_MODELS) - set(BUILT_IN_SINCE)
    assert {model.model_type for model in models.values()} == {config_of(name)["model_type"] for name in sampled}
    dropping = [spec for spec in _sampled() if models[spec.model].attention_dropout]
    assert {spec.attn_implementation for spec in dropping} == set(Attention)
    assert len({models[spec.model].model_type for spec in dropping}) == 6


def test_trials_that_take_long_are_left_out_by_a_rule():
    # One rollout of 2,048 tokens, of 28 layers; a second one is too much.
    spec = TrialSpec(
        backend=Backend.SIMULATED, gpu="h100-80gb", model="qwen2.5-7b", max_completion_length=2048, steps=1
    )
    assert decoded_layers(spec) == 2048 * 28
    assert is_wanted(spec)
    assert not is_wanted(replace(spec, steps=2))
    assert is_wanted(replace(spec, steps=2, rollout=Rollout.SYNTHETIC))
    assert max(map(decoded_layers, _sampled())) <= MOST_DECODED_LAYERS
    assert not is_wanted(replace(spec, critic=True, steps_per_generation=1))


def test_other_keys_take_all_their_values():
    assert {spec.alloc_conf for spec in _sampled()} == {text or "" for text in AXES["alloc_conf"]}
    assert {(spec.dtype, spec.bf16) for spec in _sampled()} == {
        (dtype, bf16) for dtype in set(Dtype) - set(TYPES_OF_OTHERS) for bf16 in (True, False)
    }
    names = {name for targets in AXES["lora_target_modules"] for name in targets}
    assert names == {ALL_LINEAR, *PROJECTION_NAMES, "embed_tokens"}, _WIDEN
    assert {spec.attn_implementation for spec in _sampled() if spec.model == "gpt-oss-20b"} == {Attention.EAGER}
    for key in ("steps", "num_generations", "max_prompt_length", "max_completion_length", "lora_dropout", "critic"):
        assert {getattr(spec, key) for spec in _sampled()} == set(AXES[key]), key
    most = Counter(spec.model for spec in _sampled()).most_common(1)[0][1]
    assert most < COUNT / len(AXES["model"]) * 2


@settings(max_examples=10)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 15))
def test_what_is_written_down_is_what_is_read(seed, count):
    sampled = sample(count, seed=seed)

    assert read_sampled(sampled_text(sampled, seed=seed)) == sampled


def test_every_sampled_trial_has_a_closed_form():
    assert all(has_form(spec, architecture_of(spec.model)) for spec in _sampled())


def test_a_model_that_is_not_built_in_cannot_be_sampled():
    for model in ("nobody/nothing", "/etc/config.json"):
        with pytest.raises(UsageError, match="built-in"):
            architecture_of(model)


def test_baselines_by_hand():
    spec = TrialSpec(backend=Backend.SIMULATED, gpu="h200-141gb", model="qwen2.5-0.5b")
    # 4 x weights of 2 B, 4 rows of 1,042 tokens x 896 x 24 layers x 2 B / 4, and 2 GB
    by_report = 4 * 494_032_768 * 2 + 4 * 1_042 * 896 * 24 * 2 // 4 + 2_000_000_000

    assert verl_report_bytes(spec) == by_report
    # the library's own words: two float32 states are the largest of its components; 8 B a parameter, and buffers
    assert accelerate_bytes(spec) == pytest.approx(8 * 494_032_768, rel=1e-3)


def test_the_kept_file_equals_the_sample():
    kept = Path(__file__).parents[2] / "results" / "reference" / "accuracy"

    assert kept_text(kept) == sampled_text(_sampled(), seed=SEED)


def test_the_file_of_a_large_sample_is_packed(tmp_path):
    assert written_down(tmp_path, _sampled(), seed=SEED) == _sampled()
    assert written_down(tmp_path, _sampled(), seed=SEED) == _sampled()
    assert [path.name for path in tmp_path.iterdir()] == [PACKED]
    with pytest.raises(UsageError, match="before any result"):
        written_down(tmp_path, _sampled(), seed=1)
    (tmp_path / PACKED).write_bytes(b"{}")
    with pytest.raises(UsageError, match="cannot be read"):
        kept_text(tmp_path)
