"""What changed between trl 0.14 and 1.16 in what a recipe states or leaves open, by release.

What changed between trl 0.14 and 1.16 in what a recipe states or leaves open: facts, with their sources.

Sources are files of https://github.com/huggingface/trl by tag, read at every release named here (``v0.14.0`` to
``v1.9.0``), and in the wheels of trl 1.10.0 to 1.16.0. A patch release that differs from the release it mends is not
known.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from profiler.config.notes import COUNTED_ATTENTION, kernel_notes
from profiler.domain.architectures.families import family_of
from profiler.domain.errors import Fault
from profiler.domain.models.builtin_models import find_builtin
from profiler.domain.trials.recipe import GENERATING, Recipe
from profiler.domain.trials.trial import SHARDED, ZERO_OF_WEIGHTS, Dtype, Tuning

RELEASES = (
    *(f"0.{number}" for number in range(14, 30)),
    *(f"1.{number}" for number in range(17)),
)
"""Every release since the first with `GRPOTrainer`, in order. A patch release is read as the release it mends."""

KEY = "trl"
"""The key of a command that states the release."""

OLDEST, NEWEST = RELEASES[0], RELEASES[-1]

_FORM = re.compile(r"v?(\d+\.\d+)(\.\d+)?")


def release_of(text: str) -> str | None:
    """Return the release that a user names, such as ``0.18``, ``v0.18`` or ``0.18.1``; None if it is unknown."""
    found = _FORM.fullmatch(text.strip())
    return found[1] if found is not None and found[1] in RELEASES else None


@dataclass(frozen=True)
class Versions:
    """An interval of releases, both ends included."""

    first: str = OLDEST
    last: str = NEWEST

    @classmethod
    def of(cls, text: str) -> Self:
        """Return the interval of ``0.15 to 0.17``, or of one release."""
        first, _, last = text.partition(" to ")
        return cls(first, last or first)

    @property
    def releases(self) -> tuple[str, ...]:
        """The releases of the interval, in order; empty if it ends before it begins."""
        return RELEASES[RELEASES.index(self.first) : RELEASES.index(self.last) + 1]

    def __contains__(self, release: str) -> bool:
        """Return whether the interval has `release`."""
        return release in self.releases

    def __and__(self, other: "Versions") -> "Versions | None":
        """Return the releases of both; None if there are none."""
        first = max(self.first, other.first, key=RELEASES.index)
        last = min(self.last, other.last, key=RELEASES.index)
        return Versions(first, last) if RELEASES.index(first) <= RELEASES.index(last) else None

    def __str__(self) -> str:
        return self.first if self.first == self.last else f"{self.first} to {self.last}"


def spans(releases: Iterable[str]) -> tuple[Versions, ...]:
    """Return the intervals that `releases` are, in order. By hand, 0.14, 0.15 and 0.17: 0.14 to 0.15, and 0.17."""
    found: list[Versions] = []
    for release in sorted(releases, key=RELEASES.index):
        if found and RELEASES.index(release) == RELEASES.index(found[-1].last) + 1:
            found[-1] = Versions(found[-1].first, release)
        else:
            found.append(Versions(release, release))
    return tuple(found)


def spans_text(releases: Iterable[str]) -> str:
    """Return the intervals of `releases` as a phrase: ``0.14 to 0.15 and 0.17``."""
    return " and ".join(map(str, spans(releases)))


_CONFIG = "trl/trainer/grpo_config.py"
_RLOO_CONFIG = "trl/trainer/rloo_config.py"
_TRAINING_ARGUMENTS = "transformers/training_args.py"

_DPO_CONFIG = "trl/trainer/dpo_config.py"

_GRPO, _RLOO, _SFT, _DPO = Recipe.GRPO, Recipe.RLOO, Recipe.SFT, Recipe.DPO
_KTO, _REWARD = Recipe.KTO, Recipe.REWARD

TRAINERS: Mapping[Recipe, Versions] = {
    Recipe.GRPO: Versions(),
    Recipe.RLOO: Versions("0.22", NEWEST),
    Recipe.SFT: Versions(),
    Recipe.DPO: Versions("1.15", NEWEST),
    Recipe.KTO: Versions("1.15", NEWEST),
    Recipe.REWARD: Versions("0.24", NEWEST),
}
"""The releases whose trainer is the one that is answered.

`RLOOTrainer` before 0.22 is another one: a loop like that of PPO (`trl/trainer/rloo_trainer.py`, v0.21.0).
`DPOTrainer` before 1.15 makes the logits of all tokens of both rows of a pair, prompts included, of the policy and of
the reference (`trl/trainer/dpo_trainer.py`, 1.14.0), which has no formula here, and so does `KTOTrainer`
(`kto_trainer.py`, 1.14.0). `RewardTrainer` before 0.24 runs the chosen and the rejected rows one after the other
(`reward_trainer.py`, v0.23.0).
"""

WITHOUT_DROPOUT = frozenset({_DPO, _KTO, _REWARD})
"""Trainers whose `disable_dropout` is true unless it is stated, for adapters too."""

MODEL_CONFIG_KEYS: Mapping[str, str] = {"dtype": "0.23 to 1.16", "torch_dtype": "0.14 to 0.26"}
"""Keys of `ModelConfig` (`trl/trainer/model_config.py`) that not every release has."""

_KEYS: Mapping[Recipe, Mapping[str, str]] = {
    Recipe.GRPO: {
        "0.14 to 0.17": "vllm_device",
        "0.14 to 0.27": "max_prompt_length",
        "0.15 to 0.17": "vllm_dtype vllm_max_model_len",
        "0.15 to 1.16": """ds3_gather_for_generation log_completions ref_model_mixup_alpha ref_model_sync_steps
            reward_weights sync_ref_model""",
        "0.16 to 0.17": "vllm_enable_prefix_caching",
        "0.16 to 0.27": "vllm_guided_decoding_regex",
        "0.16 to 1.16": """cache_implementation epsilon epsilon_high min_p num_iterations repetition_penalty
            scale_rewards top_k top_p vllm_server_host vllm_server_port vllm_server_timeout""",
        "0.17 to 0.26": "wandb_log_unique_prompts",
        "0.17 to 0.27": "use_liger_loss",
        "0.17 to 1.16": """disable_dropout loss_type mask_truncated_completions num_completions_to_print
            shuffle_dataset""",
        "0.18 to 1.16": """delta generation_batch_size steps_per_generation vllm_mode vllm_server_base_url
            vllm_tensor_parallel_size""",
        "0.19 to 1.16": "generation_kwargs",
        "0.20 to 1.16": "importance_sampling_level top_entropy_quantile use_transformers_paged",
        "0.21 to 1.16": "vllm_model_impl",
        "0.23 to 1.16": "vllm_enable_sleep_mode vllm_importance_sampling_cap vllm_importance_sampling_correction",
        "0.25 to 1.16": "cast_lm_head_to_fp32 chat_template_kwargs",
        "0.26 to 1.16": """log_unique_prompts num_generations_eval sapo_temperature_neg sapo_temperature_pos
            use_bias_correction_kl vllm_importance_sampling_mode vllm_max_model_length""",
        "0.27 to 1.16": """max_tool_calling_iterations multi_objective_aggregation off_policy_mask_threshold
            vllm_group_port vllm_structured_outputs_regex""",
        "0.28 to 1.16": "log_completions_hub_repo",
        "1.0 to 1.16": "pad_to_multiple_of vespo_k_neg vespo_k_pos vespo_lambda_neg vespo_lambda_pos",
        "1.6 to 1.16": "vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min",
        "1.7 to 1.16": """router_aux_loss_coef transformers_continuous_batching_config
            use_transformers_continuous_batching""",
        "1.8 to 1.16": """entropy_coef entropy_coef_delta entropy_coef_max entropy_coef_min entropy_target
            use_adaptive_entropy""",
        "1.9 to 1.16": "log_multimodal",
    },
    Recipe.RLOO: {
        "0.22 to 0.24": """cliprange dataset_num_proc exp_name kl_coef local_rollout_forward_batch_size
            missing_eos_penalty normalize_reward num_mini_batches num_ppo_epochs num_sample_generations
            response_length rloo_k stop_token stop_token_id token_level_kl total_episodes""",
        "0.22 to 0.26": "wandb_log_unique_prompts",
        "0.22 to 0.27": "vllm_guided_decoding_regex",
        "0.22 to 0.28": "max_prompt_length",
        "0.24 to 1.16": "vllm_enable_sleep_mode",
        "0.25 to 1.16": "chat_template_kwargs",
        "0.26 to 1.16": "log_unique_prompts num_generations_eval",
        "0.27 to 1.16": "vllm_group_port vllm_max_model_length vllm_structured_outputs_regex",
        "1.0 to 1.16": "pad_to_multiple_of",
        "1.7 to 1.16": """router_aux_loss_coef transformers_continuous_batching_config
            use_transformers_continuous_batching""",
        "1.9 to 1.16": "log_multimodal",
    },
    Recipe.SFT: {
        "0.14 to 0.17": "chars_per_token dataset_batch_size num_of_sequences use_liger",
        "0.14 to 0.19": "max_seq_length",
        "0.16 to 1.16": "max_length pad_token padding_free",
        "0.17 to 1.16": "completion_only_loss eos_token",
        "0.18 to 1.16": "activation_offloading pad_to_multiple_of",
        "0.19 to 1.16": "assistant_only_loss chat_template_path packing_strategy",
        "0.23 to 1.16": "loss_type",
        "0.26 to 1.16": "shuffle_dataset",
        "1.0 to 1.16": "truncation_mode",
        "1.7 to 1.16": "router_aux_loss_coef",
    },
    Recipe.DPO: {
        "0.14 to 0.28": """generate_during_eval label_pad_token_id max_completion_length max_prompt_length
            model_adapter_name ref_adapter_name ref_model_init_kwargs reference_free rpo_alpha tools""",
    },
    Recipe.KTO: {"0.14 to 0.26": "label_pad_token_id max_completion_length max_prompt_length ref_model_init_kwargs"},
    Recipe.REWARD: {},
}
"""Keys that not every release has, of the arguments of each trainer: interval, names.

Those of `DPOConfig` and `KTOConfig` were read in 0.14.0, 0.26.0, 0.28.0, 0.29.0 and 1.16.0.

Left out: keys that the class inherits from transformers, whose releases are not trl's.
"""

KEY_VERSIONS: Mapping[Recipe, Mapping[str, Versions]] = {
    recipe: {name: Versions.of(text) for text, names in rows.items() for name in names.split()}
    for recipe, rows in _KEYS.items()
}
"""The releases that have a key, by the trainer."""


def of_earlier_trainer(known: Mapping[str, Versions], recipe: Recipe) -> tuple[Fault, ...]:
    """Return the fault of the first key that only a release with another trainer has.

    Args:
        known: Keys of a file, with the releases that have them.
        recipe: The trainer.
    """
    whole, name = TRAINERS[recipe], f"{recipe.in_classes}Trainer"
    hint = f"Give trl={whole.last} for what that needs."
    for key, versions in known.items():
        if versions & whole is None:
            other = f"is a key of trl {versions}, whose {name} is another one without a recipe here"
            return (Fault(key=key, found="set", problem=f"{other}; that of {whole} has one", hint=hint),)
    return ()


@dataclass(frozen=True, kw_only=True)
class Default:
    """The default of a key in some releases."""

    key: str
    """The key of a trial."""
    value: object
    versions: Versions
    recipes: frozenset[Recipe]
    source: str


def _default(key: str, value: object, versions: str, source: str, *recipes: Recipe) -> Default:
    return Default(
        key=key,
        value=value,
        versions=Versions.of(versions),
        recipes=frozenset(recipes or Recipe),
        source=source,
    )


DEFAULTS: tuple[Default, ...] = (
    _default("per_device_train_batch_size", 1, "0.14", f"{_CONFIG}, v0.14.0", _GRPO),
    _default("per_device_train_batch_size", 8, "0.15 to 1.16", _TRAINING_ARGUMENTS, _GRPO),
    _default("per_device_train_batch_size", 8, "0.14 to 1.16", _TRAINING_ARGUMENTS, _RLOO, _SFT),
    _default("per_device_train_batch_size", 8, "1.15 to 1.16", _TRAINING_ARGUMENTS, _DPO, _KTO),
    _default("per_device_train_batch_size", 8, "0.24 to 1.16", _TRAINING_ARGUMENTS, _REWARD),
    _default("gradient_accumulation_steps", 8, "0.14", f"{_CONFIG}, v0.14.0", _GRPO),
    _default("gradient_accumulation_steps", 1, "0.15 to 1.16", _TRAINING_ARGUMENTS, _GRPO),
    _default("gradient_accumulation_steps", 1, "0.14 to 1.16", _TRAINING_ARGUMENTS, _RLOO, _SFT),
    _default("gradient_accumulation_steps", 1, "1.15 to 1.16", _TRAINING_ARGUMENTS, _DPO, _KTO),
    _default("gradient_accumulation_steps", 1, "0.24 to 1.16", _TRAINING_ARGUMENTS, _REWARD),
    _default("num_generations", 8, "0.14 to 1.16", _CONFIG, _GRPO),
    _default("num_generations", 2, "0.22 to 1.16", _RLOO_CONFIG, _RLOO),
    _default("max_completion_length", 256, "0.14 to 1.9", f"{_CONFIG}, v0.14.0 to v1.9.0", *GENERATING),
    _default("max_completion_length", 512, "1.10 to 1.16", f"{_CONFIG}, 1.10.0", *GENERATING),
    _default("gradient_checkpointing", False, "0.14 to 0.21", _TRAINING_ARGUMENTS),
    _default("gradient_checkpointing", True, "0.22 to 1.16", f"{_CONFIG}, v0.22.0"),
    _default("beta", 0.04, "0.14 to 0.18", f"{_CONFIG}, v0.14.0 to v0.18.2", _GRPO),
    _default("beta", 0.0, "0.19 to 1.16", f"{_CONFIG}, v0.19.0", _GRPO),
    _default("beta", 0.05, "0.22 to 1.16", f"{_RLOO_CONFIG}, v0.22.0", _RLOO),
    _default("beta", 0.1, "1.15 to 1.16", f"{_DPO_CONFIG}, 1.15.0; kto_config.py", _DPO, _KTO),
    _default("bf16", False, "0.14 to 0.18", _TRAINING_ARGUMENTS),
    _default("bf16", True, "0.19 to 1.16", f"{_CONFIG}, v0.19.0, __post_init__"),
    _default(
        "dtype", "float32", "0.14 to 1.16", "trl/trainer/model_config.py; before 0.27 null, which is transformers'"
    ),
    _default("optim", "adamw_torch", "0.14 to 0.20", f"{_TRAINING_ARGUMENTS}: until torch 2.8, of August 2025"),
    _default("optim", "adamw_torch_fused", "0.21 to 1.16", f"{_TRAINING_ARGUMENTS} (transformers pull request 37358)"),
)
"""Defaults that decide memory. A key without a row for a release has the default of a trial there."""


def defaults_of(recipe: Recipe, release: str) -> dict[str, object]:
    """Return the defaults of a release that decide memory, by key."""
    return {row.key: row.value for row in DEFAULTS if recipe in row.recipes and release in row.versions}


FIRST_WITHOUT_REFERENCE = next(row.versions.first for row in DEFAULTS if row.key == "beta" and row.value == 0.0)
"""The first release whose default keeps no reference model."""

FIRST_CARD = "cuda:0"
"""The value of `vllm_device` by which vLLM is on a GPU that trains."""

OLD_PART = 0.9
"""trl's default of `vllm_gpu_memory_utilization` in 0.14 and 0.15."""

UNSTATED_DTYPE = "unstated"
"""The `dtype` of weights that a script loads itself without one."""

DTYPE_ALIASES = {
    "auto": "bfloat16",
    UNSTATED_DTYPE: "bfloat16",
    "torch.bfloat16": "bfloat16",
    "torch.float16": "float16",
}
"""``auto`` is the type of the checkpoint, which is bfloat16 for current models, and so is none since transformers 5."""


def named_here(point: Mapping[str, object]) -> dict[str, object]:
    """Return the type of weights and the attention by the names of a trial's keys."""
    found = {"dtype": DTYPE_ALIASES.get(str(point["dtype"]), point["dtype"])}
    return found | dict.fromkeys((each.key for each in kernel_notes(point)), COUNTED_ATTENTION.value)


IS_LOADED = "is_loaded"
"""Key of a job whose script hands over a model that it has loaded."""
IS_WRAPPED = "is_wrapped"
"""Key of a job whose script hands over a model into which peft has put an adapter."""
COPIED_ADAPTERS = "a frozen copy of the adapters as reference, of a model that peft has wrapped before the trainer"
"""What trl keeps of it."""


@dataclass(frozen=True, kw_only=True)
class Described:
    """A job as its files describe it."""

    point: Mapping[str, object]
    """Untyped keys of the trial, with the defaults of a release."""
    file: Mapping[str, object]
    """Keys of trl's files."""
    job: Mapping[str, object]
    """How processes share the work (`profiler.config.trl.parts.JOB_KEYS`)."""

    @property
    def has_adapted_reference(self) -> bool:
        """Whether a policy with adapters is compared with a reference."""
        return self.point.get("tuning") != Tuning.FULL and bool(self.point.get("beta", 0.1))  # trl's of preferences

    @property
    def copies_adapters(self) -> bool:
        """Whether the trainer gets adapters, of which it keeps a copy as reference in releases that do so."""
        return self._wraps and not self._keeps_types

    @property
    def copies_wide_adapters(self) -> bool:
        """Whether it does so under stage 3 of ZeRO, which leaves adapters and their copy in float32."""
        return self._wraps and self._keeps_types

    @property
    def _wraps(self) -> bool:
        return self.job.get(IS_WRAPPED) is True and self.has_adapted_reference

    @property
    def _keeps_types(self) -> bool:
        return ZERO_OF_WEIGHTS in (self.job.get("zero_stage"), self.point.get("zero_stage"))

    @property
    def scores_sharded_reference(self) -> bool:
        """Whether a reference model that is sharded scores, as one unit, which may be the peak then."""
        is_trained_whole = self.point.get("tuning", Tuning.FULL) == Tuning.FULL
        return self.is_sharded and is_trained_whole and bool(self.point.get("beta"))

    def float32_norms(self, *, of_peft: bool = True) -> str | None:
        """Return the type of weights whose norms trl casts to float32, next to those in 4 bits; None where it does not.

        peft casts all other weights to float32, and trl embeddings and the LM head back if it trains in bfloat16. Some
        families' norms return the type of their input. trl skips weights that it shards. A rollout without vLLM is not
        under autocast, where the LM head refuses what such a norm returns.

        Args:
            of_peft: Whether it does so with a model into which the script has put adapters.
        """
        known = find_builtin(str(self.point.get("model")))
        narrows = known is not None and family_of(str(known.config["model_type"])).layers.has_float32_norms
        others = self.point.get("use_liger_kernel") is True or self.is_sharded or narrows
        runs = self.point.get("recipe") not in GENERATING or self.point.get("use_vllm") is True
        is_left = not of_peft and self.job.get(IS_WRAPPED) is True
        applies = self.point.get("tuning") == Tuning.QLORA and self.point.get("bf16") is True and runs
        return Dtype.FLOAT32_NORMS.value if applies and not others and not is_left else None

    @property
    def is_sharded(self) -> bool:
        """Whether FSDP or DeepSpeed shards the model."""
        by_file = self.job.get("zero_stage") is not None or "distributed_type" in self.job
        return by_file or self.point.get("distributed_type") in SHARDED


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What some releases do with a key that a recipe cannot state, or do otherwise than stated."""

    key: str
    """The key of a trial that is changed."""
    value: Callable[[Described], object]
    """Returns the value; None to leave the key as it is."""
    versions: Versions
    recipes: frozenset[Recipe]
    meaning: str
    source: str
