"""The changes that save memory: one declaration each, what hurts least first."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from profiler.config.trl_releases.behaviours import FIRST_FUSED
from profiler.config.trl_releases.facts import FIRST_WITHOUT_REFERENCE, NEWEST
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.recipe import ALL_RECIPES, GENERATING, OF_DATA, Recipe
from profiler.domain.trials.trial import (
    ALL_LINEAR,
    Attention,
    DistributedType,
    Dtype,
    Logprobs,
    TrialSpec,
    Tuning,
    VllmMode,
)

Change = Mapping[str, object]
"""Keys of a trial with their new values."""


class Hurts(StrEnum):
    """How much a change takes from the training, the least first."""

    TIME = "changes no result"
    ROUNDING = "changes results by rounding"
    TRAINING = "changes what is trained"
    MODEL = "changes the model"


@dataclass(frozen=True, kw_only=True)
class Lever:
    """One change that saves memory."""

    name: str
    hurts: Hurts
    costs: str
    """A phrase that completes "Costs: "."""
    changes: Callable[[TrialSpec], Iterator[Change]]
    """Returns the strengths of the change, the weakest first; none where it does not apply. Rules may refuse some."""
    recipes: frozenset[Recipe] = ALL_RECIPES
    extra_line: str = ""
    """A line to paste in addition to keys of trl and settings of the allocator."""


_EXPANDABLE = "expandable_segments:True"
_EIGHTHS = 8
_UTILIZATIONS = (0.4, 0.35, 0.3, 0.25, 0.2, 0.15, 0.1)
_LARGER_UTILIZATIONS = tuple(twentieths / 20 for twentieths in range(1, 19))
_NO_VLLM: Change = {
    "vllm_mode": None,
    "vllm_gpu_memory_utilization": None,
    "vllm_enable_sleep_mode": None,
    "vllm_max_model_length": None,
    "vllm_tensor_parallel_size": 1,
}


def _fused(spec: TrialSpec) -> Iterator[Change]:
    if spec.logprobs is not Logprobs.FUSED:
        yield {"logprobs": Logprobs.FUSED.value}


def _attention(spec: TrialSpec) -> Iterator[Change]:
    if spec.attn_implementation is Attention.EAGER:
        yield {"attn_implementation": Attention.SDPA.value}


def _checkpointing(spec: TrialSpec) -> Iterator[Change]:
    if not spec.gradient_checkpointing and not spec.fsdp_activation_checkpointing:
        yield {"gradient_checkpointing": True}


def _expandable(spec: TrialSpec) -> Iterator[Change]:
    # vLLM's memory pool for sleep mode refuses to start with expandable segments.
    if "expandable_segments" not in spec.alloc_conf and not spec.use_vllm:
        yield {"alloc_conf": ",".join(part for part in (spec.alloc_conf, _EXPANDABLE) if part)}


def _micro_batches(spec: TrialSpec) -> Iterator[Change]:
    """Yield smaller micro-batches with the same rows per optimizer step and per generation."""
    for factor in _divisors(spec.per_device_train_batch_size):
        change: dict[str, object] = {
            "per_device_train_batch_size": spec.per_device_train_batch_size // factor,
            "gradient_accumulation_steps": spec.gradient_accumulation_steps * factor,
        }
        if spec.recipe.facts.has_rollout:
            change["steps_per_generation"] = spec.steps_per_generation * factor
        yield change


def _evaluations(spec: TrialSpec) -> Iterator[Change]:
    rows = spec.per_device_eval_batch_size or 1
    yield from ({"per_device_eval_batch_size": rows // factor} for factor in _divisors(rows))


def _generation_batches(spec: TrialSpec) -> Iterator[Change]:
    """Yield fewer completions at once, in whole groups and whole parts of an optimizer step."""
    for factor in _divisors(spec.steps_per_generation):
        steps = spec.steps_per_generation // factor
        if spec.gradient_accumulation_steps % steps == 0:
            yield {"steps_per_generation": steps}


def _sleep(spec: TrialSpec) -> Iterator[Change]:
    if spec.vllm_mode is VllmMode.COLOCATE and not spec.vllm_enable_sleep_mode:
        yield {"vllm_enable_sleep_mode": True}


def _engine_starts(spec: TrialSpec) -> Iterator[Change]:
    """Yield sequences no longer than those of the job, then larger parts of the card as well."""
    taken, longest = spec.vllm_gpu_memory_utilization, spec.max_prompt_length + spec.max_completion_length
    if spec.vllm_mode is not VllmMode.COLOCATE or taken is None:
        return
    if spec.vllm_max_model_length is None or spec.vllm_max_model_length > longest:
        yield {"vllm_max_model_length": longest}
    for part in _LARGER_UTILIZATIONS:
        if part > taken:
            yield {"vllm_max_model_length": longest, "vllm_gpu_memory_utilization": part}


def _utilization(spec: TrialSpec) -> Iterator[Change]:
    taken = spec.vllm_gpu_memory_utilization
    if spec.vllm_mode is VllmMode.COLOCATE and taken is not None:
        yield from ({"vllm_gpu_memory_utilization": part} for part in _UTILIZATIONS if part < taken)


def _without_vllm(spec: TrialSpec) -> Iterator[Change]:
    if spec.vllm_mode is VllmMode.COLOCATE:
        yield {"use_vllm": False, **_NO_VLLM}


def _shard(spec: TrialSpec) -> Iterator[Change]:
    if spec.distributed_type is DistributedType.MULTI_GPU:
        yield {"distributed_type": DistributedType.FSDP.value}


def _eight_bit(spec: TrialSpec) -> Iterator[Change]:
    # bitsandbytes' optimizers do not run with FSDP 2.
    if spec.optim in (Optimizer.ADAMW_TORCH, Optimizer.ADAMW_TORCH_FUSED) and (
        spec.distributed_type is not DistributedType.FSDP
    ):
        yield {"optim": Optimizer.ADAMW_8BIT.value}


def _paged(spec: TrialSpec) -> Iterator[Change]:
    if spec.optim is Optimizer.ADAMW_8BIT:
        yield {"optim": Optimizer.PAGED_ADAMW_8BIT.value}


def _double_quant(spec: TrialSpec) -> Iterator[Change]:
    if spec.tuning is Tuning.QLORA and not spec.bnb_4bit_use_double_quant:
        yield {"bnb_4bit_use_double_quant": True}


def _half_precision(spec: TrialSpec) -> Iterator[Change]:
    if spec.dtype is Dtype.FLOAT32:
        yield {"dtype": (Dtype.FLOAT16 if spec.fp16 else Dtype.BFLOAT16).value}


def _no_reference(spec: TrialSpec) -> Iterator[Change]:
    if spec.keeps_reference_model:
        yield {"beta": 0.0}


def _reference_before(spec: TrialSpec) -> Iterator[Change]:
    if not spec.precompute_ref_log_probs:
        yield {"precompute_ref_log_probs": True}


def _lora(spec: TrialSpec) -> Iterator[Change]:
    if spec.tuning is Tuning.FULL:
        yield {"tuning": Tuning.LORA.value, "lora_rank": 16, "lora_alpha": 32, "lora_target_modules": [ALL_LINEAR]}


def _lower_rank(spec: TrialSpec) -> Iterator[Change]:
    if spec.lora_rank is not None and spec.lora_alpha is not None:
        yield from (
            {"lora_rank": rank, "lora_alpha": max(1, spec.lora_alpha * rank // spec.lora_rank)}
            for rank in (64, 32, 16, 8)
            if rank < spec.lora_rank
        )


def _shorter(spec: TrialSpec) -> Iterator[Change]:
    yield from ({"max_completion_length": tokens} for tokens in _shortened(spec.max_completion_length))


def _shorter_rows(spec: TrialSpec) -> Iterator[Change]:
    yield from ({"max_length": each} for each in _shortened(spec.row_tokens) if spec.row_tokens < each + spec.longest)


def _fewer_generations(spec: TrialSpec) -> Iterator[Change]:
    """Yield fewer completions per prompt, with as many prompts per optimizer step."""
    generations, factor = spec.num_generations, 1
    while generations % 2 == 0 and generations > 2:
        generations, factor = generations // 2, factor * 2
        yield from _scaled_down(spec, factor, {"num_generations": generations})


def _scaled_down(spec: TrialSpec, factor: int, change: Change) -> Iterator[Change]:
    """Yield `change` with rows per optimizer step divided by `factor`: fewer micro-batches, or else smaller ones."""
    if spec.gradient_accumulation_steps % factor == 0 and spec.steps_per_generation % factor == 0:
        yield {
            **change,
            "gradient_accumulation_steps": spec.gradient_accumulation_steps // factor,
            "steps_per_generation": spec.steps_per_generation // factor,
        }
    elif spec.per_device_train_batch_size % factor == 0:
        yield {**change, "per_device_train_batch_size": spec.per_device_train_batch_size // factor}


def _qlora(spec: TrialSpec) -> Iterator[Change]:
    if spec.tuning is not Tuning.QLORA and spec.distributed_type is not DistributedType.FSDP:
        yield {"tuning": Tuning.QLORA.value}


def _smaller_model(spec: TrialSpec) -> Iterator[Change]:
    """Yield the smaller built-in models of the same family, the largest first."""
    family = spec.model.rpartition("-")[0]
    models = [model for name, model in BUILTIN_MODELS.items() if name.rpartition("-")[0] == family]
    own = next((model for model in models if model.name == spec.model), None)
    if own is not None:
        smaller = [model for model in models if model.parameters < own.parameters]
        yield from ({"model": model.name} for model in sorted(smaller, key=lambda model: -model.parameters))


def _divisors(number: int) -> list[int]:
    """Return the divisors of `number` above 1, ascending."""
    return [factor for factor in range(2, number + 1) if number % factor == 0]


def _shortened(tokens: int) -> list[int]:
    """Return parts of `tokens` down to a quarter, in eighths, as multiples of 8. By hand, 786: 680, 584, 488, ..."""
    parts = [tokens * eighths // _EIGHTHS // _EIGHTHS * _EIGHTHS for eighths in range(_EIGHTHS - 1, 1, -1)]
    return [one for one, after in pairwise([*dict.fromkeys(parts), 0]) if one > after]


LEVERS: tuple[Lever, ...] = (
    Lever(
        name="fused log-probabilities",
        hurts=Hurts.TIME,
        costs=f"nothing; trl computes them so since {FIRST_FUSED}",
        changes=_fused,
        recipes=GENERATING,
        extra_line=f'pip install "trl>={NEWEST}"',
    ),
    Lever(
        name="attention without stored scores",
        hurts=Hurts.TIME,
        costs="nothing; it is also faster",
        changes=_attention,
    ),
    Lever(
        name="gradient checkpointing",
        hurts=Hurts.TIME,
        costs="backward computes each layer's forward again, about a third more time for training",
        changes=_checkpointing,
    ),
    Lever(
        name="expandable segments of the allocator",
        hurts=Hurts.TIME,
        costs="little: time to map pages while memory grows",
        changes=_expandable,
    ),
    Lever(
        name="memory for vLLM's weights and one sequence",
        hurts=Hurts.TIME,
        costs="nothing else; sequences longer than prompt and completion do not occur",
        changes=_engine_starts,
        recipes=GENERATING,
    ),
    Lever(
        name="vLLM sleeps while the model trains",
        hurts=Hurts.TIME,
        costs="time to free and load vLLM's weights and cache in each rollout",
        changes=_sleep,
        recipes=GENERATING,
    ),
    Lever(
        name="smaller batches of the evaluation",
        hurts=Hurts.TIME,
        costs="time of the evaluation",
        changes=_evaluations,
        recipes=OF_DATA,
    ),
    Lever(
        name="smaller micro-batches, same effective batch",
        hurts=Hurts.TIME,
        costs="time, where a smaller batch uses the GPU less",
        changes=_micro_batches,
    ),
    Lever(
        name="fewer completions generated at once, same effective batch",
        hurts=Hurts.TIME,
        costs="time, because more rollouts of fewer completions are slower",
        changes=_generation_batches,
        recipes=GENERATING,
    ),
    Lever(
        name="a smaller part of the card for vLLM",
        hurts=Hurts.TIME,
        costs="time, because fewer completions are generated at once",
        changes=_utilization,
        recipes=GENERATING,
    ),
    Lever(
        name="rollouts without vLLM",
        hurts=Hurts.TIME,
        costs="time: rollouts by the model's own generate take several times as long",
        changes=_without_vllm,
        recipes=GENERATING,
        extra_line="use_vllm: false",
    ),
    Lever(
        name="weights, gradients and optimizer states sharded over the GPUs",
        hurts=Hurts.TIME,
        costs="time to gather the weights of each layer",
        changes=_shard,
        extra_line="accelerate launch --use_fsdp --fsdp_version 2 train.py",
    ),
    Lever(
        name="the reference before training",
        hurts=Hurts.TIME,
        costs="a forward of all rows before the first step",
        changes=_reference_before,
        recipes=frozenset({Recipe.DPO, Recipe.KTO}),
    ),
    Lever(
        name="8-bit optimizer",
        hurts=Hurts.ROUNDING,
        costs="Adam's states are rounded to 8 bits in blocks",
        changes=_eight_bit,
    ),
    Lever(
        name="paged 8-bit optimizer",
        hurts=Hurts.ROUNDING,
        costs="as 8-bit, and the optimizer's step waits for states that were moved to the host",
        changes=_paged,
    ),
    Lever(
        name="double quantisation",
        hurts=Hurts.ROUNDING,
        costs="the scales of the weights in 4 bits are rounded to 8 bits",
        changes=_double_quant,
    ),
    Lever(
        name="weights in 16 bits",
        hurts=Hurts.ROUNDING,
        costs="updates are rounded to 16 bits, so very small learning rates have no effect in full fine-tuning",
        changes=_half_precision,
    ),
    Lever(
        name="no KL term, so no reference model",
        hurts=Hurts.TRAINING,
        costs=f"nothing holds the policy near its start; trl's default since {FIRST_WITHOUT_REFERENCE}",
        changes=_no_reference,
        recipes=GENERATING,
    ),
    Lever(
        name="LoRA in place of full fine-tuning",
        hurts=Hurts.TRAINING,
        costs="only adapters learn; use a learning rate about ten times as high",
        changes=_lora,
    ),
    Lever(name="lower LoRA rank", hurts=Hurts.TRAINING, costs="adapters that can learn less", changes=_lower_rank),
    Lever(
        name="shorter completions",
        hurts=Hurts.TRAINING,
        costs="longer answers are cut, and are not rewarded for their end",
        changes=_shorter,
        recipes=GENERATING,
    ),
    Lever(
        name="shorter rows", hurts=Hurts.TRAINING, costs="longer rows are cut", changes=_shorter_rows, recipes=OF_DATA
    ),
    Lever(
        name="fewer completions per prompt",
        hurts=Hurts.TRAINING,
        costs="noisier advantages, and fewer rows per optimizer step",
        changes=_fewer_generations,
        recipes=GENERATING,
    ),
    Lever(
        name="QLoRA: base weights in 4 bits",
        hurts=Hurts.MODEL,
        costs="the base model is rounded to 4 bits, and each product unpacks it",
        changes=_qlora,
    ),
    Lever(name="a smaller model of the same family", hurts=Hurts.MODEL, costs="a weaker model", changes=_smaller_model),
)
"""All levers, what hurts least first."""
