"""A trl `GRPOConfig` as YAML, as `trl grpo --config` takes it -> the keys of a trial.

What is absent means trl's default (1.16), not the profiler's. Keys of trl's `ModelConfig` and `ScriptArguments` may
stand beside those of `GRPOConfig`, as trl allows.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from profiler.config.reading import show
from profiler.config.trl_keys import FREE_KEYS, MODEL_KEYS, NEUTRAL_VALUES, RENAMED, SAME_NAME
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
"""`GRPOConfig`'s and `ModelConfig`'s of trl 1.16; a prompt's length is the data's affair and stays the profiler's."""

_OPTIM_ALIASES = {name: optim.value for optim in Optimizer for name in optim.traits.other_names}

_DTYPE_ALIASES = {"auto": "bfloat16", "torch.bfloat16": "bfloat16", "torch.float16": "float16"}
"""``auto`` is the checkpoint's own type, which is bfloat16 for the models that are published today."""


@dataclass(frozen=True, kw_only=True)
class TrlReading:
    """What a `GRPOConfig` says of a trial."""

    point: Mapping[str, object]
    """Untyped keys of the trial, for `parse_point`."""
    faults: tuple[Fault, ...]
    """Keys that are unknown, or that ask for what the closed form does not know."""


def read_trl_config(values: Mapping[str, object]) -> TrlReading:
    """The trial that a `GRPOConfig` describes, with everything that is wrong with it."""
    flat = _flattened(values)
    faults = [fault for key, value in flat.items() for fault in _faults(key, value)]
    point: dict[str, object] = dict(TRL_DEFAULTS)
    for key, value in flat.items():
        if key in SAME_NAME and value is not None:
            point[key] = value
        elif key in RENAMED and value is not None:
            point[RENAMED[key]] = value
    point["tuning"] = _tuning(flat)
    point["optim"] = _OPTIM_ALIASES.get(show(point["optim"]), point["optim"])
    point["dtype"] = _DTYPE_ALIASES.get(show(point["dtype"]), point["dtype"])
    faults += _read_generation_batch(flat, point)
    return TrlReading(point=point, faults=tuple(faults))


def _flattened(values: Mapping[str, object]) -> dict[str, object]:
    """`model_init_kwargs` taken apart: it holds the model's type and attention where there is no `ModelConfig`."""
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
    if key in SAME_NAME or key in RENAMED or key in FREE_KEYS or key in MODEL_KEYS:
        return []
    known = (*SAME_NAME, *RENAMED, *NEUTRAL_VALUES, *MODEL_KEYS, *FREE_KEYS)
    hint = nearest(key, known)
    return [Fault(key=key, found=show(value), problem="is no key of trl's GRPOConfig that is known", hint=hint)]


def _tuning(flat: Mapping[str, object]) -> str:
    if flat.get("load_in_4bit") is True:
        return "qlora"
    return "lora" if flat.get("use_peft") is True else "full"


def _read_generation_batch(flat: Mapping[str, object], point: dict[str, object]) -> list[Fault]:
    """`generation_batch_size` is trl's other way to say `steps_per_generation`, on one GPU."""
    batch, rows = flat.get("generation_batch_size"), point["per_device_train_batch_size"]
    if batch is None or not isinstance(batch, int) or not isinstance(rows, int) or rows < 1:
        return []
    if flat.get("steps_per_generation") is not None:
        problem = "cannot stand beside steps_per_generation, of which it is another way to say the same"
        return [Fault(key="generation_batch_size", found=show(batch), problem=problem)]
    if batch % rows:
        problem = f"must be a multiple of per_device_train_batch_size={rows}"
        return [Fault(key="generation_batch_size", found=show(batch), problem=problem)]
    point["steps_per_generation"] = batch // rows
    return []
