"""Seeded sampler of trials, and the file with the sampled trials, written before any of them runs."""

import io
import json
import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import pyarrow.parquet as pq

from profiler.config.foreign_text import MOST_JSON_BYTES
from profiler.config.models.architecture import read_architecture
from profiler.config.models.lookup import builtin_architecture
from profiler.config.trials.identity import spec_from_mapping, stable_mapping
from profiler.config.trials.specification import parse_point
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.errors import Fault, UsageError
from profiler.domain.models.builtin_models import find_builtin
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import TRIAL_KEYS, TrialSpec
from profiler.storage.files.atomic import write_atomically
from profiler.storage.files.foreign_files import Kind, kind_of, read_bytes, reason
from profiler.storage.foreign.model_config import load_model_config

ROOT = Path(__file__).parents[2]
SAMPLED = "sampled.jsonl"
PACKED = "sampled.parquet"
"""The lines of the same of a large sample, in one column."""

_LINE = "line"

_MOST_PLAIN = 1000
"""Trials of the largest sample whose file is not packed; each is a line of 700 bytes."""


Narrowed = tuple[str, Sequence[object], Mapping[str, Sequence[object]]]
"""A key, values of it, and the values that other keys have with these."""


FIXED: Mapping[str, object] = {
    "backend": "simulated",
    "recipe": "grpo",
    "weights": "random",
    "dataset": None,
    "seed": 0,
    "lora_dropout": 0.0,
    "weight_decay": 0.0,
    "use_liger_kernel": False,
    "fp16": False,
    "bnb_4bit_use_double_quant": True,
    "use_vllm": False,
    "vllm_mode": None,
    "vllm_gpu_memory_utilization": None,
    "vllm_enable_sleep_mode": None,
    "vllm_max_model_length": None,
    "vllm_tensor_parallel_size": 1,
    "vllm_model_impl": "vllm",
    "reward_models": None,
    "per_device_eval_batch_size": None,
    "images_per_prompt": None,
    "min_pixels": None,
    "max_pixels": None,
    "num_processes": 1,
    "distributed_type": "no",
    "fsdp_version": None,
    "fsdp_reshard_after_forward": None,
    "fsdp_offload_params": None,
    "fsdp_activation_checkpointing": None,
    "fsdp_cpu_ram_efficient_loading": False,
    "cp_size": None,
    "torch_empty_cache_steps": None,
    "activation_offloading": False,
    "ref_adapter": False,
    "critic": False,
    "use_dynamic_bsz": False,
    "ppo_max_token_len_per_gpu": None,
    "zero_stage": None,
    "offload_optimizer_device": None,
    "offload_param_device": None,
    "precompute_ref_log_probs": False,
    "precompute_ref_batch_size": None,
}
"""Values of the keys of which a sample has no axis. Of those that no sample has an axis of: a simulated trial reads no
weights, its prompts are synthetic, values of the random seed change no size, Liger's kernels, reward models and
evaluations are not simulated, vLLM and images are compared by themselves, and for offloaded activations and
micro-batches by tokens there is no closed form."""


def sample_trials(
    count: int,
    *,
    seed: int,
    axes: Mapping[str, Sequence[object]],
    fixed: Mapping[str, object],
    is_wanted: Callable[[TrialSpec], bool] = lambda _: True,
    added: Mapping[Recipe, Sequence[str]] = MappingProxyType({}),
    narrowed: Sequence[Narrowed] = (),
) -> tuple[TrialSpec, ...]:
    """Return `count` different trials. They depend only on the seed; a larger count adds trials at the end.

    A point that breaks a rule between keys (a group that is not whole, a kernel that a card lacks) is sampled again.

    Args:
        count: Number of trials.
        seed: Seed of the sample.
        axes: Values of each key that is sampled; a key that the recipe does not have is left out.
        fixed: Values of the other keys.
        is_wanted: Whether a trial is kept; one that is not is sampled again.
        added: Keys that a recipe has since a kept sample was written down; they have their default.
        narrowed: Values of keys that take the place of those of `axes`, by the value of another key; later ones win.
    """
    chance = random.Random(seed)
    sampled: dict[TrialSpec, None] = {}
    while len(sampled) < count:
        point = {**fixed, **_chosen(axes, chance)}
        for key, values, fewer in narrowed:
            if point.get(key) in values:
                point |= _chosen(fewer, chance)
        try:
            spec = parse_point(_of_recipe(point, added), architecture_of=architecture_of)
        except UsageError:
            continue
        if is_wanted(spec):
            sampled[spec] = None
    return tuple(sampled)


def _chosen(axes: Mapping[str, Sequence[object]], chance: random.Random) -> dict[str, object]:
    return {key: _plain(chance.choice(values)) for key, values in axes.items()}


def _of_recipe(point: Mapping[str, object], added: Mapping[Recipe, Sequence[str]]) -> Mapping[str, object]:
    """Return `point` without the keys that its recipe does not have, or did not have."""
    recipe = Recipe(str(point["recipe"]))
    recipes = {key.name: key.recipes for key in TRIAL_KEYS}
    return {key: value for key, value in point.items() if recipe in recipes[key] and key not in added.get(recipe, ())}


@cache
def architecture_of(model: str) -> Architecture:
    """Return the architecture of a built-in model, or of a file of this repository, by its path from the root.

    Raises:
        UsageError: There is no such model.
    """
    return builtin_architecture(model) or read_architecture(config_of(model), model=model)


def config_of(model: str) -> Mapping[str, object]:
    """Return the fields of the model's `config.json`.

    Raises:
        UsageError: There is no such model.
    """
    builtin = find_builtin(model)
    if builtin is not None:
        return builtin.config
    path = ROOT / model
    if path.suffix != ".json" or not path.is_relative_to(ROOT):
        raise UsageError([Fault(key="model", found=model, problem="must be a built-in model or a file of maintenance")])
    return load_model_config(str(path))


def sampled_text(specs: Sequence[TrialSpec], *, seed: int) -> str:
    """Return the sample as lines of JSON: the seed, then one trial per line."""
    lines = [json.dumps({"seed": seed, "count": len(specs)})]
    return "\n".join([*lines, *(json.dumps(stable_mapping(spec)) for spec in specs)]) + "\n"


def read_sampled(text: str) -> tuple[TrialSpec, ...]:
    """Read the trials that `sampled_text` wrote.

    Raises:
        ValueError: The text does not have that form.
    """
    _, *lines = text.splitlines()
    return tuple(spec_from_mapping(json.loads(line)) for line in lines)


def _plain(value: object) -> object:
    """Return `value` as a user would type it."""
    return list(value) if isinstance(value, tuple) else value


def folder_faults(folder: Path) -> list[Fault]:
    """Return the faults of the folder of results."""
    try:
        kind_of(folder / SAMPLED)
    except OSError as error:
        return [Fault(key="results_dir", found=str(folder.parent), problem=f"cannot be used ({reason(error)})")]
    return []


def written_down(folder: Path, sampled: Sequence[TrialSpec], *, seed: int) -> tuple[TrialSpec, ...]:
    """Return the sample; write its file if there is none.

    Raises:
        UsageError: The file exists and has another sample.
    """
    path = folder / (SAMPLED if len(sampled) <= _MOST_PLAIN else PACKED)
    text = sampled_text(sampled, seed=seed)
    if kind_of(path) is Kind.MISSING:
        write_atomically(path, _packed(text) if path.name == PACKED else text.encode())
    elif _content(path) != text.encode():
        problem = f"does not give the sample of {path}, which was written before any result was known"
        hint = "Give the count and seed of its first line, or another results_dir."
        raise UsageError([Fault(key="seed", found=str(seed), problem=problem, hint=hint)])
    return read_sampled(text)


def kept_text(folder: Path) -> str:
    """Return the text of the file of a sample.

    Raises:
        UsageError: It cannot be read.
    """
    packed = folder / PACKED
    return _content(packed if packed.exists() else folder / SAMPLED).decode()


def _packed(text: str) -> bytes:
    content = io.BytesIO()
    pq.write_table(pa.table({_LINE: text.splitlines()}), content, compression="zstd")
    return content.getvalue()


def _content(path: Path) -> bytes:
    try:
        content = read_bytes(path, most_bytes=MOST_JSON_BYTES)
        if path.name != PACKED:
            return content
        lines = pq.read_table(io.BytesIO(content), columns=[_LINE]).column(_LINE).to_pylist()
        return "".join(f"{line}\n" for line in lines).encode()
    except (OSError, pa.ArrowException) as error:
        why = reason(error) if isinstance(error, OSError) else "is not the file of a sample"
        raise UsageError([Fault(key="sample", found=str(path), problem=f"cannot be read ({why})")]) from error
