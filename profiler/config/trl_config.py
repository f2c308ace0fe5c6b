"""Reading of a trl configuration in YAML, as for `trl grpo --config` or `trl sft --config`, into the keys of a trial.

An absent key has trl's default (1.16), not the profiler's. As in trl, the file may also contain keys of `ModelConfig`
and `ScriptArguments`. Keys that none of them has belong to the user's script; they are listed, and change nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd

from profiler.config.reading import show
from profiler.config.trl_keys import FREE_KEYS, KEY_OF, MODEL_KEYS, NEUTRAL_VALUES
from profiler.config.trl_trainers import recipe_of
from profiler.domain.errors import Fault, nearest
from profiler.domain.optimizers import Optimizer
from profiler.domain.recipe import Recipe
from profiler.domain.trial import Lengths, VllmMode, key_named

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
"""Defaults of `GRPOConfig`, `SFTConfig` and `ModelConfig` in trl 1.16. The length of prompts depends on the data, so it
keeps the profiler's default."""

_OPTIM_ALIASES = {name: optim.value for optim in Optimizer for name in optim.traits.other_names}

_DTYPE_ALIASES = {"auto": "bfloat16", "torch.bfloat16": "bfloat16", "torch.float16": "float16"}
"""``auto`` is the type of the checkpoint, which is bfloat16 for current models."""

_OLD_ENGINE = "vllm_device"
"""A key of trl 0.14 and 0.15, which ran vLLM on a GPU that does not train."""

_NO_EVALUATION = (None, "no", False)


@dataclass(frozen=True, kw_only=True)
class Note:
    """Something that the file does not say, or that is not counted."""

    key: str
    """The key of a trial that would settle it; empty if none would."""
    text: str
    is_counted: bool = True
    """Whether the estimate has it, by an assumption."""


def note_lines(notes: Sequence[Note]) -> tuple[str, ...]:
    """Return what was assumed, and what is not counted, as one line each."""
    assumed = ", ".join(note.text for note in notes if note.is_counted)
    missing = ", ".join(note.text for note in notes if not note.is_counted)
    return tuple(line for line in (assumed and f"Assumed: {assumed}.", missing and f"Not counted: {missing}.") if line)


@dataclass(frozen=True, kw_only=True)
class TrlReading:
    """A trial as a file of trl describes it."""

    point: Mapping[str, object]
    """Untyped keys of the trial, for `parse_point`."""
    notes: tuple[Note, ...]
    """What was assumed, and what is not counted."""
    unknown: tuple[str, ...]
    """Keys that none of trl's classes has."""
    faults: tuple[Fault, ...]
    """Values that have no formula, and files of other trainers."""


def read_trl_config(values: Mapping[str, object], *, strict: bool = False) -> TrlReading:
    """Return the trial that a file of trl describes, with every fault in it.

    Args:
        values: The content of the file.
        strict: Whether an unknown key is a fault.
    """
    flat = _flattened(values)
    recipe, faults = recipe_of(flat)
    faults += [fault for key, value in flat.items() for fault in _faults(key, value)]
    unknown = tuple(key for key in flat if not _is_known(key))
    if strict:
        faults += [_unknown_key(key, flat[key]) for key in unknown]
    point: dict[str, object] = {key: value for key, value in TRL_DEFAULTS.items() if recipe in key_named(key).recipes}
    point["recipe"] = recipe.value
    for key, value in flat.items():
        if key in KEY_OF and value is not None and recipe in key_named(KEY_OF[key]).recipes:
            point[KEY_OF[key]] = value
    point["tuning"] = _tuning(flat)
    point["optim"] = _OPTIM_ALIASES.get(show(point["optim"]), point["optim"])
    point["dtype"] = _DTYPE_ALIASES.get(show(point["dtype"]), point["dtype"])
    if flat.get("packing") is True:
        point["lengths"] = Lengths.FORCED.value
    if recipe is Recipe.GRPO:
        if _OLD_ENGINE in flat:
            point.setdefault("vllm_mode", VllmMode.SERVER.value)
        point["num_processes"] = _processes(flat, point)
        faults += _read_generation_batch(flat, point)
    notes = tuple(_assumed(flat, point, recipe)) + tuple(_not_counted(flat))
    return TrlReading(point=point, notes=notes, unknown=unknown, faults=tuple(faults))


def _flattened(values: Mapping[str, object]) -> dict[str, object]:
    """Return the keys with those of `model_init_kwargs`: type and attention without `ModelConfig`."""
    flat = {str(key): value for key, value in values.items()}
    inner = flat.pop("model_init_kwargs", None)
    return {**{str(key): value for key, value in inner.items()}, **flat} if isinstance(inner, Mapping) else flat


def _is_known(key: str) -> bool:
    return key in KEY_OF or key in FREE_KEYS or key in MODEL_KEYS or key in NEUTRAL_VALUES


def _faults(key: str, value: object) -> list[Fault]:
    allowed = NEUTRAL_VALUES.get(key)
    if allowed is None or value is None or value in allowed:
        return []
    texts = " or ".join(show(choice) for choice in allowed)
    return [Fault(key=key, found=show(value), problem=f"changes memory in a way that has no formula; only {texts}")]


def _unknown_key(key: str, value: object) -> Fault:
    known = (*KEY_OF, *NEUTRAL_VALUES, *MODEL_KEYS, *FREE_KEYS)
    problem = "is unknown in trl's arguments, which strict=true refuses"
    return Fault(key=key, found=show(value), problem=problem, hint=nearest(key, known))


def _tuning(flat: Mapping[str, object]) -> str:
    if flat.get("load_in_4bit") is True:
        return "qlora"
    return "lora" if flat.get("use_peft") is True else "full"


def _processes(flat: Mapping[str, object], point: Mapping[str, object]) -> int:
    """Return the smallest number of processes with which groups are whole: a file of trl does not state it.

    1 where any value is not a whole number, because `parse_point` reports that.
    """
    group, rows = point["num_generations"], point["per_device_train_batch_size"]
    steps = point.get("steps_per_generation", point["gradient_accumulation_steps"])
    if flat.get("generation_batch_size") is not None:
        return 1
    if not all(isinstance(value, int) and value > 0 for value in (group, rows, steps)):
        return 1
    group, generated = int(str(group)), int(str(rows)) * int(str(steps))
    return group // gcd(group, generated)


def _read_generation_batch(flat: Mapping[str, object], point: dict[str, object]) -> list[Fault]:
    """Read `generation_batch_size`, which determines `steps_per_generation`."""
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


def _assumed(flat: Mapping[str, object], point: Mapping[str, object], recipe: Recipe) -> Sequence[Note]:
    """Return what the file does not say."""
    notes = []
    if recipe.generates and "max_prompt_length" not in point:
        tokens = key_named("max_prompt_length").default
        notes.append(Note(key="max_prompt_length", text=f"max_prompt_length={tokens} (give that of your data)"))
    if recipe.generates:
        processes = point["num_processes"]
        why = "the fewest that num_generations allows" if processes != 1 else "not stated in a file of trl"
        notes.append(Note(key="num_processes", text=f"num_processes={processes} ({why})"))
    if flat.get("use_vllm") is True and flat.get("vllm_mode") is None:
        why = "trl's default; before 1.0 it was server"
        if _OLD_ENGINE in flat:
            why = f"{_OLD_ENGINE} is of trl before 0.16, where vLLM had a GPU of its own"
        notes.append(Note(key="vllm_mode", text=f"vllm_mode={point.get('vllm_mode', VllmMode.COLOCATE)} ({why})"))
    if not {"dtype", "torch_dtype"} & flat.keys():
        notes.append(Note(key="dtype", text=f"dtype={TRL_DEFAULTS['dtype']} (trl's default)"))
    return notes


def _not_counted(flat: Mapping[str, object]) -> Sequence[Note]:
    """Return what needs memory and has no formula."""
    notes = []
    if flat.get("use_liger_kernel") is True:
        text = "what use_liger_kernel saves (its layers need less than the model's own)"
        notes.append(Note(key="", is_counted=False, text=text))
    if flat.get("eval_strategy") not in _NO_EVALUATION:
        rows = flat.get("per_device_eval_batch_size", 8)
        notes.append(Note(key="", is_counted=False, text=f"evaluation (batches of {show(rows)})"))
    rewards = flat.get("reward_funcs")
    names = [*(rewards if isinstance(rewards, list) else [rewards]), flat.get("reward_model_name_or_path")]
    for name in names:
        if isinstance(name, str) and ("/" in name or name == flat.get("reward_model_name_or_path")):
            notes.append(Note(key="", is_counted=False, text=f"the reward model {show(name)}"))
    return notes
