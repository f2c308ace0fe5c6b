"""A trial as arguments of trl 1.16, for a file that `trl grpo --config` accepts, or the command of another recipe."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from profiler.config.models.lookup import canonical_model, checkpoint
from profiler.config.trl.argument_keys import (
    FREE_KEYS,
    KEY_OF,
    KEYS_OF_SOME,
    MODEL_KEYS,
    NEUTRAL_VALUES,
    OF_TRANSFORMERS_4,
)
from profiler.config.trl_releases.facts import WITHOUT_DROPOUT
from profiler.domain.trials.recipe import OF_DATA, Recipe
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
    if spec.per_device_eval_batch_size is not None and spec.recipe in OF_DATA:
        # Not a name of the key: a file without an evaluation states it too.
        values["per_device_eval_batch_size"] = spec.per_device_eval_batch_size
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
