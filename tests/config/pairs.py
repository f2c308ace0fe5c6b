"""Pairs of trials for the order of trials by memory, built from the declarations of the keys."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hypothesis import strategies as st

from profiler.config.trials.key_values import without_other_recipes
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.trials.keys import Key, Kind, MemoryOrder
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import ALL_LINEAR, TRIAL_KEYS, DistributedType, Logprobs, TrialSpec, Tuning, VllmMode

COUNTS = (1, 2, 3, 4, 6, 8, 12, 16)

_VALUES: Mapping[str, Sequence[object]] = {
    "model": sorted(BUILTIN_MODELS),
    "lora_rank": (1, 4, 16, 64, 256),
    "lora_target_modules": ((ALL_LINEAR,), ("q_proj", "v_proj"), ("embed_tokens", "v_proj")),
    "max_prompt_length": (1, 8, 100, 1000),
    "max_length": (1, 2, 7, 8, 100, 1000, 4096),
    "max_completion_length": (1, 2, 7, 8, 100, 1000, 4096),
    "alloc_conf": ("", "roundup_power2_divisions:8"),
    "reward_models": (None, ("tiny",)),
    "vllm_mode": tuple(VllmMode),
    "vllm_gpu_memory_utilization": (0.3, 0.9),
    "vllm_enable_sleep_mode": (False, True),
    "vllm_max_model_length": (None, 8192),
    "vllm_tensor_parallel_size": (1, 2),
}
"""Values of keys whose declaration does not lead to interesting ones."""


def values_of(key: Key) -> Sequence[object]:
    """Values of a key to choose from. A key without a case here fails the tests until it gets one."""
    if key.name in _VALUES:
        return _VALUES[key.name]
    if key.choices is not None:
        return tuple(key.choices)
    if key.kind is Kind.COUNT:
        return tuple(count for count in COUNTS if count >= key.minimum)
    by_kind = {Kind.CHOICE: key.values, Kind.FLAG: (True, False), Kind.NUMBER: (0.0, 0.04), Kind.TEXT: (key.default,)}
    return (None, *by_kind[key.kind]) if key.null else by_kind[key.kind]


def normalised(values: Mapping[str, object]) -> TrialSpec:
    """The specification of `values`, without keys that have no meaning in it."""
    adapters = [name for name in values if name.startswith("lora_")]
    found = {**values, **(dict.fromkeys(adapters) if values["tuning"] is Tuning.FULL else {})}
    if not values["use_vllm"] or values["vllm_mode"] is VllmMode.SERVER:
        mode = values["vllm_mode"] if values["use_vllm"] else None
        found.update({key.name: key.without_meaning for key in TRIAL_KEYS if key.name.startswith("vllm_")})
        found["vllm_mode"] = mode
    found["critic"] = values["critic"] and values["tuning"] is Tuning.FULL and _is_aligned(values)
    if values["num_processes"] == 1:
        found["distributed_type"] = DistributedType.NO
    if not values["use_dynamic_bsz"]:
        found["ppo_max_token_len_per_gpu"] = None
    recipe, logprobs = Recipe(str(values["recipe"])), Logprobs(str(values["logprobs"]))
    if logprobs.pair_loss is not None and not logprobs.is_of(recipe):
        found["logprobs"] = Logprobs.FUSED
    return TrialSpec(**without_other_recipes(found, recipe))


def _is_aligned(values: Mapping[str, object]) -> bool:
    """Whether a generation has the rows of whole optimizer steps, for which there is a closed form of critics."""
    return int(str(values["steps_per_generation"])) % int(str(values["gradient_accumulation_steps"])) == 0


def trials() -> st.SearchStrategy[TrialSpec]:
    """Any trial, from every key that is declared."""
    return _TRIALS


_VALUES_OF = tuple((key.name, tuple(values_of(key))) for key in TRIAL_KEYS)
_BYTE_VALUES = 256

assert all(len(values) <= _BYTE_VALUES for _, values in _VALUES_OF), "a byte must reach each value"


def _of_bytes(choices: bytes) -> TrialSpec:
    """The trial whose keys have the values that a byte each chooses; zeros choose the first ones."""
    return normalised(
        {
            name: values[byte * len(values) // _BYTE_VALUES]
            for byte, (name, values) in zip(choices, _VALUES_OF, strict=True)
        }
    )


_TRIALS = st.binary(min_size=len(_VALUES_OF), max_size=len(_VALUES_OF)).map(_of_bytes)
"""One choice for all keys: to draw 75 values one by one takes longer than most tests do with them."""


ORDERED_KEYS = tuple(key for key in TRIAL_KEYS if key.memory is not MemoryOrder.SAME)
"""Keys in which two comparable trials can differ."""


def _other_values(key: Key, first: TrialSpec) -> Sequence[object]:
    """Values that a second trial can have; of models only those of the same family, larger ones first."""
    if key.name != "model":
        return values_of(key)
    family = BUILTIN_MODELS[first.model].config["model_type"]
    alike = [model for model in BUILTIN_MODELS.values() if model.config["model_type"] == family]
    return [model.name for model in sorted(alike, key=lambda model: -model.parameters)]


@st.composite
def rising_pairs(draw: st.DrawFn, keys: Sequence[Key] = ORDERED_KEYS, most: int = 3) -> tuple[TrialSpec, TrialSpec]:
    """Two trials that differ in up to `most` of `keys`; of a key that grows, the second has the larger value."""
    first = draw(trials().filter(lambda trial: any(trial.recipe in key.recipes for key in keys)))
    changed: dict[str, object] = {}
    second: dict[str, object] = {}
    for key in draw(st.lists(st.sampled_from(keys), min_size=1, max_size=most, unique_by=lambda key: key.name)):
        if first.recipe not in key.recipes or (getattr(first, key.name) is None and key.name.startswith("lora_")):
            continue
        values = [getattr(first, key.name), draw(st.sampled_from(_other_values(key, first)))]
        if key.memory is MemoryOrder.GROWS:
            values.sort()
        changed[key.name], second[key.name] = values
    return replace(first, **changed), replace(first, **second)
