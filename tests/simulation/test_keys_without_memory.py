"""Keys of trl's files that change no memory: simulated with two values, a trial has the same peak in each phase."""

from functools import cache
from typing import Any

import pytest
from matrix import with_further
from simulating import simulate

from profiler.config.trl.argument_keys import FREE_KEYS_BY_REASON
from profiler.domain.memory import Phase
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.trials.recipe import Recipe
from profiler.training import arguments
from profiler.training.recipes import dpo, sft
from profiler.training.recipes.grpo import recipe as grpo

ONE_LAYER = {**BUILTIN_MODELS["tiny"].config, "num_hidden_layers": 1}
"""What updates and losses need is the same with more layers."""

BYTES_PER_TOKEN = 32
"""What a number of the loss may need for each token of a micro-batch."""

UPDATES = "how long, and by which numbers, the same tensors are updated"
LOSSES = "numbers of the loss: values of some bytes per token at most"

TRIALS: dict[Recipe, dict[str, Any]] = {
    Recipe.GRPO: {"beta": 0.04},
    Recipe.SFT: {"max_length": 24},
    Recipe.DPO: {"max_length": 24, "beta": 0.1},
    Recipe.KTO: {"max_length": 24, "beta": 0.1},
    Recipe.REWARD: {"max_length": 24},
}
VALUES: dict[str, dict[tuple[Recipe, str], object]] = {
    UPDATES: {
        (Recipe.SFT, "learning_rate"): 1.0,
        (Recipe.SFT, "lr_scheduler_type"): "cosine",
        (Recipe.SFT, "lr_scheduler_kwargs"): {},
        (Recipe.SFT, "warmup_steps"): 1,
        (Recipe.SFT, "adam_beta1"): 0.0,
        (Recipe.SFT, "adam_beta2"): 0.5,
        (Recipe.SFT, "adam_epsilon"): 0.1,
        (Recipe.SFT, "average_tokens_across_devices"): False,
        (Recipe.SFT, "tf32"): False,
        (Recipe.SFT, "data_seed"): 3,
        (Recipe.GRPO, "adam_beta1"): 0.0,
    },
    LOSSES: {
        (Recipe.GRPO, "loss_type"): "grpo",
        (Recipe.GRPO, "num_generations_eval"): 2,
        (Recipe.GRPO, "epsilon"): 0.1,
        (Recipe.GRPO, "epsilon_high"): 0.3,
        (Recipe.GRPO, "delta"): 2.0,
        (Recipe.GRPO, "sapo_temperature_neg"): 2.0,
        (Recipe.GRPO, "sapo_temperature_pos"): 2.0,
        (Recipe.GRPO, "vespo_k_pos"): 1.0,
        (Recipe.GRPO, "vespo_lambda_pos"): 1.0,
        (Recipe.GRPO, "vespo_k_neg"): 1.0,
        (Recipe.GRPO, "vespo_lambda_neg"): 1.0,
        (Recipe.GRPO, "importance_sampling_level"): "sequence",
        (Recipe.GRPO, "reward_weights"): [2.0],
        (Recipe.GRPO, "multi_objective_aggregation"): "normalize_then_sum",
        (Recipe.GRPO, "scale_rewards"): "batch",
        (Recipe.GRPO, "off_policy_mask_threshold"): 0.5,
        (Recipe.GRPO, "use_bias_correction_kl"): True,
        (Recipe.SFT, "loss_type"): "dft",
        (Recipe.SFT, "completion_only_loss"): False,
        (Recipe.DPO, "loss_type"): ["sigmoid", "sft"],
        (Recipe.DPO, "loss_weights"): [1.0],
        (Recipe.DPO, "label_smoothing"): 0.1,
        (Recipe.DPO, "ld_alpha"): 0.5,
        (Recipe.DPO, "use_weighting"): True,
        (Recipe.DPO, "f_divergence_type"): "alpha_divergence",
        (Recipe.DPO, "f_alpha_divergence_coef"): 0.7,
        (Recipe.DPO, "discopop_tau"): 0.1,
        (Recipe.KTO, "desirable_weight"): 2.0,
        (Recipe.KTO, "undesirable_weight"): 2.0,
        (Recipe.REWARD, "center_rewards_coefficient"): 0.1,
    },
}
"""A value of each key that is not trl's default."""

LEFT_OUT = {
    "num_train_epochs": "the number of steps",
    "max_steps": "the number of steps",
    "warmup_ratio": "an argument of transformers 4",
    "max_grad_norm": "without clipping no call announces the phase of the optimizer: the peak of the trial is compared",
    "normalize_advantages": "RLOO",
    "reward_clip_range": "RLOO",
    "assistant_only_loss": "rows of conversations",
    "vllm_importance_sampling_mode": "vLLM",
    "vllm_importance_sampling_clip_max": "vLLM",
    "vllm_importance_sampling_clip_min": "vLLM",
    "vllm_importance_sampling_cap": "vLLM",
}
"""Keys that no case has, with what they would need, or what compares them."""


@cache
def _default(recipe: Recipe) -> dict[Phase, int]:
    return _peaks(recipe)


def _peaks(recipe: Recipe) -> dict[Phase, int]:
    peaks: dict[Phase, int] = {}
    for phase, level in simulate(recipe=recipe, model_config=ONE_LAYER, **TRIALS[recipe]).levels():
        peaks[phase] = max(peaks.get(phase, 0), sum(level.values()))
    return peaks


def _with_argument(recipe: Recipe, key: str, value: object, patch: pytest.MonkeyPatch) -> dict[Phase, int]:
    """Return the peaks of a trial whose arguments state a key that no trial has."""
    found = arguments.common_arguments
    for module in (arguments, grpo, dpo, sft):
        if hasattr(module, "common_arguments"):
            patch.setattr(module, "common_arguments", lambda spec, **keys: {**found(spec, **keys), key: value})
    return _peaks(recipe)


FREE = [(reason, *case) for reason, cases in VALUES.items() for case in cases]
FIRST = {(reason, recipe): key for reason, recipe, key in reversed(FREE)}
"""One key per reason and recipe; the others are further cases."""
KEPT = [(reason, recipe, key) for (reason, recipe), key in FIRST.items()]


@pytest.mark.parametrize("free", with_further(FREE, KEPT), ids=str)
def test_a_free_key_changes_no_peak(free: tuple[str, Recipe, str], monkeypatch: pytest.MonkeyPatch) -> None:
    reason, recipe, key = free
    default = _default(recipe)
    stated = _with_argument(recipe, key, VALUES[reason][recipe, key], monkeypatch)
    tokens = 4 * 2 * 24
    most = BYTES_PER_TOKEN * tokens if reason == LOSSES else 0
    assert stated.keys() == default.keys()
    assert all(abs(stated[phase] - size) <= most for phase, size in default.items())


@pytest.mark.parametrize("recipe", [Recipe.SFT, Recipe.GRPO])
def test_clipping_gradients_changes_no_peak(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    default = _default(recipe)
    assert max(_with_argument(recipe, "max_grad_norm", 0.0, monkeypatch).values()) == max(default.values())


@pytest.mark.parametrize("reason", VALUES)
def test_every_such_key_is_compared_or_says_why_not(reason: str) -> None:
    compared = {key for _, key in VALUES[reason]}
    assert FREE_KEYS_BY_REASON[reason] == compared | (FREE_KEYS_BY_REASON[reason] & LEFT_OUT.keys())
    assert not compared & LEFT_OUT.keys()
    assert LEFT_OUT.keys() <= set().union(*(FREE_KEYS_BY_REASON[each] for each in VALUES))
