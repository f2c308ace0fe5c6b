"""Which trainer of trl a configuration file is for, by the keys that only its arguments have."""

from collections.abc import Mapping
from typing import NamedTuple

from profiler.domain.errors import Fault
from profiler.domain.trials.recipe import Recipe

OTHER_TRAINERS = ("bco", "cpo", "dpo", "gkd", "kto", "nash_md", "online_dpo", "orpo", "ppo", "prm", "reward", "xpo")
"""Trainers of trl, in any version, that have no recipe here, as its command line names them."""

GENERATION_KEYS = frozenset(
    """
    num_generations max_completion_length reward_funcs use_vllm vllm_mode steps_per_generation generation_batch_size
    reward_weights scale_rewards num_iterations importance_sampling_level mask_truncated_completions epsilon_high
    """.split()  # noqa: SIM905
)
"""Keys of GRPO's arguments and script that trainers without generation do not have."""

SFT_KEYS = frozenset(
    """
    packing eval_packing packing_strategy completion_only_loss assistant_only_loss dataset_text_field dataset_kwargs
    max_seq_length
    """.split()  # noqa: SIM905
)
"""Keys that of trl's arguments only `SFTConfig` has; `max_seq_length` is the earlier name of its `max_length`."""


RLOO_KEYS = frozenset({"normalize_advantages", "reward_clip_range"})
"""Keys that of trl's arguments only `RLOOConfig` has."""


class _Other(NamedTuple):
    """A trainer that has no recipe here."""

    trainer: str
    keys: frozenset[str]


OTHERS = (
    _Other(
        "PPOTrainer",
        frozenset(
            """
            total_episodes num_ppo_epochs num_mini_batches local_rollout_forward_batch_size num_sample_generations
            response_length rloo_k missing_eos_penalty whiten_rewards sft_model_path reward_model_path
            """.split()  # noqa: SIM905
        ),
    ),
    _Other("KTOTrainer", frozenset({"desirable_weight", "undesirable_weight"})),
    _Other("RewardTrainer", frozenset({"center_rewards_coefficient"})),
    _Other(
        "DPOTrainer",
        frozenset(
            """
            discopop_tau f_divergence_type f_alpha_divergence_coef label_smoothing ld_alpha loss_weights use_weighting
            reference_free rpo_alpha
            """.split()  # noqa: SIM905
        ),
    ),
)
"""Keys that of trl's arguments only one other trainer has, with names of earlier versions."""


def recipe_of(values: Mapping[str, object]) -> tuple[Recipe, list[Fault]]:
    """Return the recipe that a file is for, and a fault if it is for a trainer that has none.

    A file without a key of any trainer is taken for GRPO.
    """
    generates = any(key in GENERATION_KEYS for key in values)
    for other in OTHERS:
        found = sorted(key for key in values if key in other.keys)
        if found and not generates:
            return Recipe.GRPO, [_no_recipe(found[0], other.trainer)]
    if any(key in RLOO_KEYS for key in values):
        return Recipe.RLOO, []
    if generates:
        return Recipe.GRPO, []
    if any(key in SFT_KEYS for key in values):
        return Recipe.SFT, []
    if "max_length" in values:
        return (Recipe.GRPO, [_no_recipe("beta", "DPOTrainer")]) if "beta" in values else (Recipe.SFT, [])
    return Recipe.GRPO, []


def trainer_is_known(values: Mapping[str, object]) -> bool:
    """Return whether a key says which trainer a file is for."""
    keys = GENERATION_KEYS | SFT_KEYS | RLOO_KEYS | {"max_length"}.union(*(other.keys for other in OTHERS))
    return not keys.isdisjoint(values)


def _no_recipe(key: str, trainer: str) -> Fault:
    return Fault(
        key="config",
        found=key,
        problem=f"is a key of trl's {trainer}, which has no recipe here; the recipes are {', '.join(Recipe)}",
    )
