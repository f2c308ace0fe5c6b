"""A trial as arguments of trl 1.16, for a file that `trl grpo --config` accepts, or the command of another recipe."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from profiler.config.models.lookup import canonical_model, checkpoint
from profiler.config.trl.argument_keys import FREE_KEYS, KEY_OF, MODEL_KEYS, NEUTRAL_VALUES, OF_TRANSFORMERS_4
from profiler.config.trl_releases.facts import WITHOUT_DROPOUT
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import TRIAL_KEYS, TrialSpec, Tuning, VllmMode, key_named

LONGEST_VALUE = 60
"""Most characters of a text that is repeated."""

ALLOC_CONF = "PYTORCH_ALLOC_CONF"
"""The environment variable of torch's allocator."""

OLD_KEYS = frozenset(
    """
    datasets logging_dir max_pixels max_prompt_length max_seq_length min_pixels overwrite_output_dir revision
    torch_dtype vllm_device vllm_max_model_len warmup_ratio adafactor no_cuda sharded_ddp torchdynamo
    """.split()  # noqa: SIM905
).union(OF_TRANSFORMERS_4)
"""Keys of earlier versions, and of files of other forms, that no class of trl 1.16 has."""

_GRPO, _RLOO, _SFT = Recipe.GRPO, Recipe.RLOO, Recipe.SFT
_DPO, _KTO, _REWARD = Recipe.DPO, Recipe.KTO, Recipe.REWARD

KEYS_OF_SOME: Mapping[tuple[Recipe, ...], frozenset[str]] = {
    (_GRPO, _RLOO): frozenset(
        """
        cache_implementation chat_template_kwargs ds3_gather_for_generation epsilon epsilon_high generation_batch_size
        generation_kwargs log_completions log_multimodal log_unique_prompts mask_truncated_completions
        max_completion_length min_p num_completions_to_print num_generations num_generations_eval num_iterations
        repetition_penalty reward_funcs reward_model_name_or_path reward_weights steps_per_generation temperature
        top_k top_p transformers_continuous_batching_config use_transformers_continuous_batching
        use_transformers_paged use_vllm vllm_enable_sleep_mode vllm_gpu_memory_utilization vllm_group_port
        vllm_max_model_length vllm_mode vllm_model_impl vllm_server_base_url vllm_server_host vllm_server_port
        vllm_server_timeout vllm_structured_outputs_regex vllm_tensor_parallel_size
        """.split()  # noqa: SIM905
    ),
    (_GRPO,): frozenset(
        """
        cast_lm_head_to_fp32 delta entropy_coef entropy_coef_delta entropy_coef_max entropy_coef_min entropy_target
        importance_sampling_level log_completions_hub_repo max_tool_calling_iterations multi_objective_aggregation
        off_policy_mask_threshold sapo_temperature_neg sapo_temperature_pos scale_rewards top_entropy_quantile
        use_adaptive_entropy use_bias_correction_kl vespo_k_neg vespo_k_pos vespo_lambda_neg vespo_lambda_pos
        vllm_importance_sampling_cap vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min
        vllm_importance_sampling_correction vllm_importance_sampling_mode
        """.split()  # noqa: SIM905
    ),
    (_SFT,): frozenset(
        """
        assistant_only_loss completion_only_loss dataset_kwargs dataset_text_field eval_packing packing
        packing_strategy
        """.split()  # noqa: SIM905
    ),
    (_DPO,): frozenset(
        """
        discopop_tau f_alpha_divergence_coef f_divergence_type label_smoothing ld_alpha loss_weights use_weighting
        """.split()  # noqa: SIM905
    ),
    (_GRPO, _RLOO, _DPO, _KTO): frozenset("beta ref_model_mixup_alpha ref_model_sync_steps sync_ref_model".split()),  # noqa: SIM905
    (_SFT, _DPO, _KTO, _REWARD): frozenset("activation_offloading dataset_num_proc max_length".split()),  # noqa: SIM905
    (_SFT, _REWARD): frozenset("chat_template_path eos_token".split()),  # noqa: SIM905
    (_SFT, _DPO): frozenset("padding_free truncation_mode".split()),  # noqa: SIM905
    (_DPO, _KTO): frozenset("precompute_ref_batch_size precompute_ref_log_probs".split()),  # noqa: SIM905
    (_RLOO,): frozenset("normalize_advantages reward_clip_range".split()),  # noqa: SIM905
    (_KTO,): frozenset("desirable_weight undesirable_weight".split()),  # noqa: SIM905
    (_GRPO, _SFT, _DPO, _KTO): frozenset("loss_type".split()),  # noqa: SIM905
    (_SFT, _DPO, _REWARD): frozenset("pad_token".split()),  # noqa: SIM905
    (_GRPO, _RLOO, _DPO, _KTO, _REWARD): frozenset("disable_dropout".split()),  # noqa: SIM905
    (_GRPO, _RLOO, _SFT, _DPO, _KTO): frozenset("router_aux_loss_coef".split()),  # noqa: SIM905
    (_REWARD,): frozenset("center_rewards_coefficient".split()),  # noqa: SIM905
    (_GRPO, _RLOO, _SFT): frozenset("shuffle_dataset".split()),  # noqa: SIM905
}
"""Keys that the arguments of some trainers have, with those of their scripts, by the trainers that have them.

Source: the fields of `GRPOConfig`, `RLOOConfig`, `SFTConfig`, `DPOConfig`, `KTOConfig` and `RewardConfig` of trl 1.16.
"""

MODEL_ARGUMENTS = (
    "model_name_or_path",
    "dtype",
    "attn_implementation",
    "use_peft",
    "lora_r",
    "lora_alpha",
    "lora_dropout",
    "lora_target_modules",
    "load_in_4bit",
    "use_bnb_nested_quant",
)
"""Keys of `ModelConfig` that a trial decides; trl makes its `LoraConfig` of them."""

_SECRET = "hub_token"
_TUNING_KEYS = (
    "use_peft",
    "load_in_4bit",
    "use_bnb_nested_quant",
    "lora_r",
    "lora_alpha",
    "lora_dropout",
    "lora_target_modules",
)
_NOT_WRITTEN = ("seed", "dataset")


@dataclass(frozen=True, kw_only=True)
class TrlFile:
    """The arguments of a trial, and what does not belong into the file."""

    training: Mapping[str, object]
    """Of trl's configuration of the trainer, and of the script."""
    model: Mapping[str, object]
    """Of `ModelConfig`."""
    environment: Mapping[str, str]
    """Environment variables of the process that trains."""
    left_out: tuple[str, ...]
    """Keys of the user's file that trl 1.16 does not have, are long, or are secret."""

    @property
    def values(self) -> dict[str, object]:
        """Everything that is in the file."""
        return {**self.training, **self.model}


def trl_arguments(spec: TrialSpec) -> dict[str, object]:
    """Return the arguments that decide the memory of `spec`, by trl's names."""
    values: dict[str, object] = {}
    for key in TRIAL_KEYS:
        name = next((name for name in key.trl_names if name not in OLD_KEYS), None)
        value = getattr(spec, key.name)
        if name is None or value is None or spec.recipe not in key.recipes or key.name in _NOT_WRITTEN:
            continue
        values[name] = list(value) if isinstance(value, tuple) else _plain(value)
    if not spec.use_vllm:
        values = {name: value for name, value in values.items() if "vllm" not in name}
    elif spec.vllm_mode is VllmMode.SERVER:
        values = {
            name: value for name, value in values.items() if name in ("use_vllm", "vllm_mode") or "vllm" not in name
        }
    values["model_name_or_path"] = checkpoint(spec.model)
    for name in ("fp16", "weight_decay"):
        if not values[name]:
            del values[name]  # trl's default
    if spec.tuning is Tuning.FULL:
        del values["lora_dropout"]
    else:
        values["use_peft"] = True
    if spec.recipe in WITHOUT_DROPOUT and spec.lora_dropout:
        # trl's default switches it off.
        values["disable_dropout"] = False
    double_quant = values.pop("use_bnb_nested_quant")
    if spec.tuning is Tuning.QLORA:
        values.update(load_in_4bit=True, use_bnb_nested_quant=double_quant)
    return values


def _todays_name(key: str) -> str | None:
    """Return what trl 1.16 calls a key of the user's file that has an older name; None if it has no such key."""
    names = key_named(KEY_OF[key]).trl_names if key in KEY_OF else ()
    return next((name for name in names if name not in OLD_KEYS), None)


def trl_file(spec: TrialSpec, given: Mapping[str, object]) -> TrlFile:
    """Return the file of `spec`, with what of the user's own file does not decide memory.

    Args:
        spec: The trial.
        given: The content of the user's file; empty without one.
    """
    own = trl_arguments(spec)
    replaced = {*KEY_OF, *_TUNING_KEYS, "generation_batch_size"}
    kept, left_out = {}, []
    for key, value in given.items():
        if key in replaced and key != "seed":
            if key in OLD_KEYS and _todays_name(key) not in own:
                left_out.append(key)
            continue
        if _belongs(key, spec.recipe) and key != _SECRET and len(str(value)) <= LONGEST_VALUE:
            kept[key] = value
        else:
            left_out.append(key)
    named = given.get("model_name_or_path")
    if isinstance(named, str) and canonical_model(named) == spec.model:
        own["model_name_or_path"] = named  # one of several checkpoints with the same tensors
    values = {**kept, **own}
    return TrlFile(
        training={key: value for key, value in values.items() if key not in MODEL_ARGUMENTS},
        model={key: values[key] for key in MODEL_ARGUMENTS if key in values},
        environment={ALLOC_CONF: spec.alloc_conf} if spec.alloc_conf else {},
        left_out=tuple(left_out),
    )


def changed_lines(before: TrialSpec, after: TrialSpec) -> tuple[str, ...]:
    """Return the lines of a file of trl, and of a shell, by which `after` differs from `before`."""
    was, now = trl_arguments(before), trl_arguments(after)
    lines = [line for key, value in now.items() if was.get(key) != value for line in yaml_lines({key: value})]
    if after.alloc_conf != before.alloc_conf:
        lines.append(f"export {ALLOC_CONF}={after.alloc_conf}")
    return tuple(lines)


def yaml_lines(values: Mapping[str, object]) -> tuple[str, ...]:
    """Return the lines of `values` as YAML."""
    return tuple(f"{key}: {_yaml(value)}" for key, value in values.items())


def _yaml(value: object) -> str:
    """Return `value` as YAML in one line."""
    dumped = yaml.safe_dump([value], default_flow_style=True, allow_unicode=True, width=1_000_000)
    return str(dumped).strip()[1:-1]


def _belongs(key: str, recipe: Recipe) -> bool:
    """Return whether the arguments of trl 1.16 for `recipe` have `key`."""
    is_known = key in FREE_KEYS or key in KEY_OF or key in MODEL_KEYS or key in NEUTRAL_VALUES
    return is_known and key not in OLD_KEYS and key not in _OTHERS[recipe]


_OTHERS: Mapping[Recipe, frozenset[str]] = {
    recipe: frozenset[str]().union(*(keys for recipes, keys in KEYS_OF_SOME.items() if recipe not in recipes))
    for recipe in Recipe
}
"""Keys that the arguments of each recipe do not have."""


def _plain(value: Any) -> object:  # noqa: ANN401  of any key
    """Return a word as text that YAML can write."""
    return str(value) if isinstance(value, str) else value
