"""Reading of a trl configuration in YAML, as for `trl grpo --config`, into the keys of a trial.

An absent key has trl's default of a release, not the profiler's. As in trl, the file may also contain keys of
`ModelConfig` and `ScriptArguments`. Keys that none of them has belong to the user's script; they are listed, and change
nothing.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm

from profiler.config.notes import Note, Uncounted, kernel_notes, not_counted, uncounted_texts
from profiler.config.options.reading import show
from profiler.config.trl import argument_keys as trl_effects
from profiler.config.trl.argument_keys import FREE_KEYS, KEY_OF, MODEL_KEYS, NEUTRAL_VALUES, evaluates, is_trl_key
from profiler.config.trl.argument_values import checked_values, recipe_of, short_prompts, trainer_notes
from profiler.config.trl.parts import (
    Sharing,
    effects_of,
    fewest_sharing,
    fewest_whole,
    reward_models,
    reward_notes,
    sharding_keys,
    sharding_notes,
    sharing_of,
    uncounted,
    unread_faults,
    with_defaults,
)
from profiler.config.trl_releases import facts
from profiler.config.trl_releases.facts import FIRST_CARD, NEWEST, OLD_PART, WITHOUT_DROPOUT, defaults_of
from profiler.domain.errors import Fault, nearest
from profiler.domain.models.builtin_models import VISION_MODELS, find_builtin
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import ZERO_OF_WEIGHTS, Lengths, Logprobs, VllmMode, key_named

TRL_DEFAULTS: Mapping[str, object] = defaults_of(Recipe.GRPO, NEWEST)
"""Defaults of `GRPOConfig` and `ModelConfig` in the newest release. The length of prompts depends on the
data, so it keeps the profiler's default."""

RLOO_DEFAULTS: Mapping[str, object] = {
    key: value for key, value in defaults_of(Recipe.RLOO, NEWEST).items() if TRL_DEFAULTS[key] != value
}
"""Defaults of `RLOOConfig` that are not those of `GRPOConfig`."""

_OPTIM_ALIASES = {name: optim.value for optim in Optimizer for name in optim.traits.other_names}

_OLD_ENGINE = "vllm_device"
"""A key of trl 0.14 to 0.17, where vLLM runs on GPUs that do not train."""

_WITH_OWN_PART = ("0.14", "0.15")
"""Releases whose trainer starts the engine on `vllm_device`; from 0.16 on it is a server."""

_PASSES = "num_iterations"
_UNPADDED = "padding_free"
"""A key that trl's `DPOTrainer` switches off (`__init__` in `trl/trainer/dpo_trainer.py`, 0.29 to 1.16)."""

_LIGER = ("use_liger_kernel", "use_liger")
_EVALUATED = "per_device_eval_batch_size"
EVALUATED_ROWS = 8
"""transformers' default of `per_device_eval_batch_size`."""

_OF_OTHERS = tuple(each.value for each in Logprobs if not each.is_of_trl)

LORA_DROPOUT = 0.05
"""Default of `ModelConfig.lora_dropout` in trl 1.16, of which trl makes its `LoraConfig`; that of peft is 0."""

PEFT_TARGETS = ("q_proj", "v_proj")
"""The modules that peft adapts where none are named, in all families that it knows by default.

Source: `TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING` of peft 0.21. trl passes null on.
"""


@dataclass(frozen=True, kw_only=True)
class TrlReading:
    """A trial as a file of trl describes it."""

    point: Mapping[str, object]
    """Untyped keys of the trial, for `parse_point`."""
    notes: tuple[Note, ...]
    """What was assumed, and what is not counted."""
    sharding: Mapping[str, object]
    """Keys of the trial that say how FSDP or DeepSpeed shards it, which `point` leaves out."""
    shares: Sharing | None
    """What shards it; None if nothing does."""
    left_out: tuple[Note, ...]
    """What an estimate of `point` alone leaves out of that."""
    unknown: tuple[str, ...]
    """Keys that none of trl's classes has."""
    faults: tuple[Fault, ...]
    """Values that have no formula, and files of other trainers."""
    taken: Mapping[str, str]
    """Keys of the trial that the file leaves open or that trl changed, each with what trl does there, or empty."""
    beyond: tuple[str, ...]
    """What the release needs in addition to that, without a formula."""


def read_trl_config(
    values: Mapping[str, object],
    *,
    strict: bool = False,
    recipe: Recipe | None = None,
    job: Mapping[str, object] | None = None,
    release: str = NEWEST,
    given: Mapping[str, object] | None = None,
    settled: Collection[str] = (),
) -> TrlReading:
    """Return the trial that a file of trl describes, with every fault in it.

    Args:
        values: The content of the file.
        strict: Whether an unknown key is a fault.
        recipe: The trainer, where it is known; else the keys tell.
        job: How processes share the work, by `profiler.config.trl.parts.JOB_KEYS`.
        release: The release of trl whose defaults hold (`profiler.config.trl_releases.facts.RELEASES`).
        given: Keys of the trial that the command line states, which win.
        settled: Keys of the trial that another note settles, with the default of the newest release.
    """
    flat, own_job, wrong = checked_values(_flattened(values))
    job = {**own_job, **(job or {})}
    found, faults = recipe_of(flat)
    unnamed = () if recipe is not None else trainer_notes(flat, found)
    recipe = recipe or found
    faults += [*wrong, *_without_adapter(flat), *unread_faults(job, given or {})]
    faults += [fault for key in flat for fault in _faults(key, flat, recipe)]
    unknown = tuple(key for key in flat if not is_trl_key(key))
    if strict:
        faults += [_unknown_key(key, flat[key]) for key in unknown]
    point, taken = with_defaults(flat, recipe, release, settled)
    point["tuning"] = _tuning(flat)
    # ModelConfig's default is false, and that of a trial is true.
    point["bnb_4bit_use_double_quant"] = flat.get("use_bnb_nested_quant") or False
    if point["tuning"] != "full":
        point.setdefault("lora_target_modules", list(PEFT_TARGETS))
        point.setdefault("lora_dropout", LORA_DROPOUT)
        if _disables_dropout(flat, recipe):
            point["lora_dropout"] = 0.0
    point["optim"] = _OPTIM_ALIASES.get(show(point["optim"]), point["optim"])
    point |= facts.named_here(point)
    if flat.get("packing") is True:
        point["lengths"] = Lengths.FORCED.value
    described = facts.Described(point={**point, **(given or {})}, file=flat, job=job)
    changed = effects_of(described, recipe, release, untouched={*settled, *(given or {})})
    point.update({key: value for key, (value, _) in changed.items()})
    taken.update({key: meaning for key, (_, meaning) in changed.items()})
    if evaluates(flat) and _counts_evaluation(described, recipe):
        point[_EVALUATED] = flat.get(_EVALUATED, EVALUATED_ROWS)
    if recipe.facts.has_rollout:
        if _OLD_ENGINE in flat:
            point.setdefault("vllm_mode", VllmMode.SERVER.value)
        faults += _read_generation_batch(flat, point, job)
        if reward_models(flat):
            point["reward_models"] = reward_models(flat)
        point["num_processes"] = _processes(flat, point)
        faults += _whole_evaluation(flat, point, job)
    if job.get("num_processes") is not None:
        point["num_processes"] = job["num_processes"]
    described = facts.Described(point={**point, **(given or {})}, file=flat, job=job)
    notes = (*unnamed, *_assumed(flat, point, recipe, job), *_not_counted(described, recipe))
    point |= short_prompts(point, recipe)
    return TrlReading(
        point=point,
        notes=notes,
        sharding={**sharding_keys(job), **fewest_sharing(job, point, flat)},
        shares=sharing_of(job),
        left_out=sharding_notes(job),
        unknown=unknown,
        faults=tuple(faults),
        taken=taken,
        beyond=(*uncounted(described, recipe, release), *_old_part(flat, release)),
    )


def _flattened(values: Mapping[str, object]) -> dict[str, object]:
    """Return the keys with those of `model_init_kwargs`: type and attention without `ModelConfig`."""
    flat = {str(key): value for key, value in values.items()}
    inner = flat.pop("model_init_kwargs", None)
    return {**{str(key): value for key, value in inner.items()}, **flat} if isinstance(inner, Mapping) else flat


def _disables_dropout(flat: Mapping[str, object], recipe: Recipe) -> bool:
    """Return whether adapters drop nothing: some trainers' `disable_dropout` is true unless it is stated."""
    stated = flat.get("disable_dropout")
    return stated is True or (recipe in WITHOUT_DROPOUT and stated is None)


def _faults(key: str, flat: Mapping[str, object], recipe: Recipe) -> list[Fault]:
    value = flat[key]
    allowed = NEUTRAL_VALUES.get(key)
    if allowed is None or value is None or value in allowed:
        return []
    if (key == _UNPADDED and recipe is Recipe.DPO) or (key == _PASSES and _counts_passes(flat)):
        return []
    if key == _PASSES and isinstance(value, int) and value > 1:
        return [Fault(key=key, found=show(value), problem="needs logits that Liger's loss leaves out; only 1")]
    texts = " or ".join(show(choice) for choice in (*allowed, *(() if allowed else (None,))))
    return [Fault(key=key, found=show(value), problem=f"changes memory in a way that has no formula; only {texts}")]


def _counts_passes(flat: Mapping[str, object]) -> bool:
    """Return whether several passes over the same completions need at most what is counted.

    Before the first one trl scores the completions by the policy as it was, without gradient
    (`_generate_and_score_completions` of 1.16): less than the backward pass of the same rows, unless Liger's loss
    leaves out their logits there.
    """
    passes = flat.get(_PASSES)
    has_liger = True in (flat.get("use_liger_kernel"), flat.get("use_liger_loss")) and flat.get("use_vllm") is not True
    return isinstance(passes, int) and passes > 0 and not has_liger


def _unknown_key(key: str, value: object) -> Fault:
    known = (*KEY_OF, *NEUTRAL_VALUES, *MODEL_KEYS, *FREE_KEYS)
    problem = "is unknown in trl's arguments, which strict=true refuses"
    return Fault(key=key, found=show(value), problem=problem, hint=nearest(key, known))


def _tuning(flat: Mapping[str, object]) -> str:
    if flat.get("load_in_4bit") is True:
        return "qlora"
    return "lora" if flat.get("use_peft") is True else "full"


def _without_adapter(flat: Mapping[str, object]) -> list[Fault]:
    """Check that quantised weights have an adapter (`validate_quantization_for_training` of transformers 5.23)."""
    if flat.get("load_in_4bit") is not True or flat.get("use_peft") is True:
        return []
    problem = "without use_peft is refused by transformers, which does not train quantised weights themselves"
    hint = "Add use_peft: true, or give tuning=qlora."
    return [Fault(key="tuning", found="load_in_4bit: true", problem=problem, hint=hint)]


def _processes(flat: Mapping[str, object], point: Mapping[str, object]) -> int:
    """Return the fewest processes with which groups and engines of vLLM are whole: a file of trl does not state it.

    1 where any value is not a whole number, because `parse_point` reports that.
    """
    group, rows = point["num_generations"], point["per_device_train_batch_size"]
    steps = point.get("steps_per_generation", point["gradient_accumulation_steps"])
    evaluated = point.get(_EVALUATED)
    generated = rows * steps if isinstance(rows, int) and isinstance(steps, int) else None
    counts = [fewest_whole(group, generated) if flat.get("generation_batch_size") is None else 1]
    if evaluated is not None:
        counts.append(fewest_whole(_evaluation_group(flat, point), evaluated))
    shared = point.get("vllm_tensor_parallel_size")
    if flat.get("use_vllm") is True and point.get("vllm_mode") != VllmMode.SERVER and isinstance(shared, int):
        counts.append(max(shared, 1))
    return lcm(*counts)


def _evaluation_group(flat: Mapping[str, object], point: Mapping[str, object]) -> object:
    stated = flat.get("num_generations_eval")
    return point["num_generations"] if stated is None else stated


def _whole_evaluation(
    flat: Mapping[str, object], point: Mapping[str, object], job: Mapping[str, object]
) -> list[Fault]:
    """Check the rule of `GRPOConfig.__post_init__` in trl 1.16 for a stated number of processes.

    A recipe with `vllm_device` is of a trl that had no such rule in its first version.
    """
    if _OLD_ENGINE in flat:
        return []
    rows, processes = point.get(_EVALUATED), job.get("num_processes")
    group = _evaluation_group(flat, point)
    if not isinstance(rows, int) or not isinstance(processes, int) or not isinstance(group, int) or group < 1:
        return []
    if rows * processes % group == 0:
        return []
    problem = f"times num_processes={processes} must be a multiple of the {group} completions per prompt"
    return [Fault(key=_EVALUATED, found=show(rows), problem=problem)]


def _counts_evaluation(job: facts.Described, recipe: Recipe) -> bool:
    """Return whether an evaluation has a formula: of rows that of whole models and trl's losses, without Liger."""
    has_others = job.point.get("logprobs") in _OF_OTHERS or sharding_keys(job.job)
    return recipe.facts.has_rollout or not (has_others or any(job.file.get(key) is True for key in _LIGER))


def _read_generation_batch(
    flat: Mapping[str, object], point: dict[str, object], job: Mapping[str, object]
) -> list[Fault]:
    """Read `generation_batch_size`, which determines `steps_per_generation`; it is that of all processes."""
    batch, rows = flat.get("generation_batch_size"), point["per_device_train_batch_size"]
    processes = job.get("num_processes", 1)
    if batch is None or not isinstance(batch, int) or not isinstance(rows, int) or rows < 1:
        return []
    if flat.get("steps_per_generation") is not None:
        problem = "cannot be combined with steps_per_generation, because each determines the other"
        return [Fault(key="generation_batch_size", found=show(batch), problem=problem)]
    processes = processes if isinstance(processes, int) and processes > 0 else 1
    if batch % (rows * processes):
        factors = f"per_device_train_batch_size={rows}" + (f" x num_processes={processes}" if processes > 1 else "")
        return [Fault(key="generation_batch_size", found=show(batch), problem=f"must be a multiple of {factors}")]
    point["steps_per_generation"] = batch // (rows * processes)
    return []


def _sees_images(model: object) -> bool:
    """Return whether a built-in model has a vision tower. Its prompts are stated together with their images."""
    known = find_builtin(model) if isinstance(model, str) else None
    return known is not None and known.name in VISION_MODELS


def _assumed(
    flat: Mapping[str, object], point: Mapping[str, object], recipe: Recipe, job: Mapping[str, object]
) -> Sequence[Note]:
    """Return what the file does not say."""
    notes = [*reward_notes(flat)] if recipe.facts.has_scoring else []
    if recipe.facts.has_prompts and "max_prompt_length" not in point and not _sees_images(point.get("model")):
        tokens = short_prompts(point, recipe).get("max_prompt_length", key_named("max_prompt_length").default)
        notes.append(Note(key="max_prompt_length", text=f"max_prompt_length={tokens} (give that of your data)"))
    if job.get("num_processes") is None:
        processes = point.get("num_processes", 1)
        shared = point.get("vllm_tensor_parallel_size") not in (None, 1)
        allows = "num_generations and vllm_tensor_parallel_size allow" if shared else "num_generations allows"
        why = f"the fewest that {allows}" if processes != 1 else "not stated in a file of trl"
        notes.append(Note(key="num_processes", text=f"num_processes={processes} ({why})"))
    if flat.get("use_vllm") is True and flat.get("vllm_mode") is None:
        why = "trl's default; before 1.0 it was server"
        if _OLD_ENGINE in flat:
            why = f"{_OLD_ENGINE} is of trl 0.14 to 0.17, where vLLM has GPUs of its own"
        notes.append(Note(key="vllm_mode", text=f"vllm_mode={point.get('vllm_mode', VllmMode.COLOCATE)} ({why})"))
    if _EVALUATED in point and flat.get(_EVALUATED) is None:
        notes.append(Note(key=_EVALUATED, text=f"{_EVALUATED}={EVALUATED_ROWS} (transformers' default)"))
    stated = {flat[key] for key in ("dtype", "torch_dtype") if isinstance(flat.get(key), str)}
    if not {"dtype", "torch_dtype"} & flat.keys():
        notes.append(Note(key="dtype", text=f"dtype={TRL_DEFAULTS['dtype']} (trl's default)"))
    elif "auto" in stated or (facts.UNSTATED_DTYPE in stated and point["dtype"] == facts.DTYPE_ALIASES["auto"]):
        notes.append(Note(key="dtype", text=f"dtype={facts.DTYPE_ALIASES['auto']} (auto: the type of the checkpoint)"))
    if point["tuning"] != "full" and flat.get("lora_target_modules") is None:
        targets = f"lora_target_modules={show(PEFT_TARGETS)} (peft's default)"
        notes.append(Note(key="lora_target_modules", text=targets))
    drops = point["tuning"] != "full" and not _disables_dropout(flat, recipe)
    if recipe is Recipe.DPO and flat.get(_UNPADDED) is True:
        notes.append(Note(key=_UNPADDED, text=f"{_UNPADDED}=false (trl switches it off with a warning, and pads)"))
    if recipe in WITHOUT_DROPOUT and flat.get("lora_dropout") and not drops and point["tuning"] != "full":
        notes.append(Note(key="lora_dropout", text="lora_dropout=0 (disable_dropout is true, which is trl's default)"))
    if drops and flat.get("lora_dropout") is None:
        notes.append(Note(key="lora_dropout", text=f"lora_dropout={LORA_DROPOUT} (trl's default; that of peft is 0)"))
    return [*notes, *kernel_notes(flat)]


def _old_part(flat: Mapping[str, object], release: str) -> Iterator[str]:
    """Return that the engine's own card has another part than a server of trl takes; the trial counts the server's."""
    part = flat.get("vllm_gpu_memory_utilization")
    has_own = flat.get("use_vllm") is True and flat.get(_OLD_ENGINE) != FIRST_CARD  # or the next one by default
    if release in _WITH_OWN_PART and has_own and part not in (None, OLD_PART):
        yield f"that the engine takes {show(part)} of its card, by vllm_gpu_memory_utilization"


def _effects(
    flat: Mapping[str, object], recipe: Recipe, job: Mapping[str, object]
) -> Iterator[Mapping[str, Uncounted]]:
    """Return the tables of values without a formula that have a meaning in this job."""
    yield trl_effects.ANY_TRAINER
    if flat.get("load_in_4bit") is True:
        yield trl_effects.OF_FOUR_BITS
    if not recipe.facts.has_rollout:
        yield trl_effects.OF_ROWS
        if recipe is Recipe.KTO:
            yield trl_effects.OF_KTO
    elif flat.get("use_vllm") is True:
        yield trl_effects.OF_ENGINE
    else:
        yield trl_effects.OF_GENERATION
        if job.get("zero_stage") == ZERO_OF_WEIGHTS:
            yield trl_effects.OF_ZERO_3
    if flat.get("router_aux_loss_coef") is not None and _has_experts(flat):
        yield trl_effects.OF_EXPERTS


def _has_experts(flat: Mapping[str, object]) -> bool:
    """Return whether the model is not known to be dense."""
    model = flat.get("model_name_or_path")
    known = find_builtin(model) if isinstance(model, str) else None
    return known is None


def _not_counted(it: facts.Described, recipe: Recipe) -> Sequence[Note]:
    """Return what needs memory and has no formula."""
    flat, passes = it.file, it.file.get(_PASSES, 1)
    scored = f"{_PASSES}={show(passes)}, by which the policy scores its completions (less than the backward pass needs)"
    notes = [not_counted(text) for table in _effects(flat, recipe, it.job) for text in uncounted_texts(table, flat)]
    if recipe is Recipe.GRPO and passes not in (None, 1) and flat.get("use_vllm") is not True:
        notes.append(not_counted(scored))
    if _EVALUATED not in it.point and evaluates(flat):
        rows = flat.get(_EVALUATED, EVALUATED_ROWS)
        has_liger = any(flat.get(key) is True for key in _LIGER)
        counter = "" if has_liger else "; `python -m profiler.forecast` counts it on one GPU"
        notes.append(replace(not_counted(f"evaluation (batches of {show(rows)}{counter})"), is_evaluation=True))
    return notes
