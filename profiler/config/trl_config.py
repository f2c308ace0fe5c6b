"""Reading of a trl `GRPOConfig` in YAML, as for `trl grpo --config`, into the keys of a trial.

An absent key has trl's default (1.16), not the profiler's. As in trl, the file may also contain keys of `ModelConfig`
and `ScriptArguments`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from profiler.config.reading import show
from profiler.config.trl_keys import FREE_KEYS, KEY_OF, MODEL_KEYS, NEUTRAL_VALUES
from profiler.domain.errors import Fault, nearest
from profiler.domain.optimizers import Optimizer

TRL_DEFAULTS: Mapping[str, object] = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "num_generations": 8,
    "max_completion_length": 512,
    "gradient_checkpointing": True,
    "beta": 0.0,
    "bf16": True,
    "dtype": "float32",
    "optim": "adamw_torch_fused",
}
"""Defaults of `GRPOConfig` and `ModelConfig` in trl 1.16. The length of prompts depends on the data, so it keeps the
profiler's default."""

_OPTIM_ALIASES = {name: optim.value for optim in Optimizer for name in optim.traits.other_names}

_DTYPE_ALIASES = {"auto": "bfloat16", "torch.bfloat16": "bfloat16", "torch.float16": "float16"}
"""``auto`` is the type of the checkpoint, which is bfloat16 for current models."""


@dataclass(frozen=True, kw_only=True)
class TrlReading:
    """A trial as a `GRPOConfig` describes it."""

    point: Mapping[str, object]
    """Untyped keys of the trial, for `parse_point`."""
    faults: tuple[Fault, ...]
    """Unknown keys, and values that the closed form has no formula for."""


def read_trl_config(values: Mapping[str, object]) -> TrlReading:
    """Return the trial that a `GRPOConfig` describes, with every fault in it."""
    flat = _flattened(values)
    faults = [fault for key, value in flat.items() for fault in _faults(key, value)]
    point: dict[str, object] = dict(TRL_DEFAULTS)
    for key, value in flat.items():
        if key in KEY_OF and value is not None:
            point[KEY_OF[key]] = value
    point["tuning"] = _tuning(flat)
    point["optim"] = _OPTIM_ALIASES.get(show(point["optim"]), point["optim"])
    point["dtype"] = _DTYPE_ALIASES.get(show(point["dtype"]), point["dtype"])
    faults += _read_generation_batch(flat, point)
    return TrlReading(point=point, faults=tuple(faults))


def _flattened(values: Mapping[str, object]) -> dict[str, object]:
    """Return the keys with those of `model_init_kwargs`: type and attention without `ModelConfig`."""
    flat = {str(key): value for key, value in values.items()}
    inner = flat.pop("model_init_kwargs", None)
    return {**{str(key): value for key, value in inner.items()}, **flat} if isinstance(inner, Mapping) else flat


def _faults(key: str, value: object) -> list[Fault]:
    if key in NEUTRAL_VALUES:
        allowed = NEUTRAL_VALUES[key]
        if value is None or value in allowed:
            return []
        texts = " or ".join(show(choice) for choice in allowed)
        return [Fault(key=key, found=show(value), problem=f"changes memory in a way that has no formula; only {texts}")]
    if key in KEY_OF or key in FREE_KEYS or key in MODEL_KEYS:
        return []
    known = (*KEY_OF, *NEUTRAL_VALUES, *MODEL_KEYS, *FREE_KEYS)
    hint = nearest(key, known)
    return [Fault(key=key, found=show(value), problem="is unknown in trl's GRPOConfig", hint=hint)]


def _tuning(flat: Mapping[str, object]) -> str:
    if flat.get("load_in_4bit") is True:
        return "qlora"
    return "lora" if flat.get("use_peft") is True else "full"


def _read_generation_batch(flat: Mapping[str, object], point: dict[str, object]) -> list[Fault]:
    """Read `generation_batch_size`, which determines `steps_per_generation` on one GPU."""
    batch, rows = flat.get("generation_batch_size"), point["per_device_train_batch_size"]
    if batch is None or not isinstance(batch, int) or not isinstance(rows, int) or rows < 1:
        return []
    if flat.get("steps_per_generation") is not None:
        problem = "cannot be combined with steps_per_generation, because each determines the other"
        return [Fault(key="generation_batch_size", found=show(batch), problem=problem)]
    if batch % rows:
        problem = f"must be a multiple of per_device_train_batch_size={rows}"
        return [Fault(key="generation_batch_size", found=show(batch), problem=problem)]
    point["steps_per_generation"] = batch // rows
    return []
