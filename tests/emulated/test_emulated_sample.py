"""The trials that are emulated and simulated: written down, and over every way to train and many cards."""

from collections import Counter
from functools import cache
from pathlib import Path

from maintenance.samples.emulated_sample import sample
from maintenance.samples.one_gpu import AXES, MOST_DECODED_TOKENS, ONE_GPU
from maintenance.samples.sampling import sampled_text
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import TRIAL_KEYS, Attention, Backend, Rollout, TrialSpec

KEPT = Path(__file__).parents[2] / "results" / "reference" / "emulated" / "sampled.jsonl"


@cache
def sampled() -> tuple[TrialSpec, ...]:
    """The sample. Each process of the tests imports this file, and one needs the trials."""
    return sample(ONE_GPU)


def test_the_kept_file_equals_the_sample():
    assert KEPT.read_text() == sampled_text(sampled(), seed=ONE_GPU.seed)


def test_the_sample_has_every_tuning_optimizer_and_way_and_many_families_of_cards():
    for key in ("recipe", "model", "tuning", "optim", "lengths", "logprobs", "rollout", "gpu"):
        found = Counter(str(getattr(spec, key)) for spec in sampled())
        assert set(found) == set(map(str, AXES[key])), key
        assert min(found.values()) >= 10, key
    assert len({KNOWN_GPUS[str(spec.gpu)].compute_capability for spec in sampled()}) >= 5
    assert Attention.FLASH_ATTENTION_2 not in AXES["attn_implementation"]


def test_every_key_is_sampled_or_fixed():
    assert set(AXES) | set(ONE_GPU.fixed) == {key.name for key in TRIAL_KEYS}
    assert not set(AXES) & set(ONE_GPU.fixed)


def test_few_tokens_are_decoded_one_by_one():
    decoded = [
        spec.max_completion_length
        for spec in sampled()
        if spec.recipe is Recipe.GRPO and spec.rollout is Rollout.GENERATE
    ]
    assert len(decoded) >= 20
    assert max(decoded) <= MOST_DECODED_TOKENS
    assert {spec.backend for spec in sampled()} == {Backend.SIMULATED}
