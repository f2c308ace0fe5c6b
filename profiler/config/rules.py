"""Rules between the keys of a trial, from trl, transformers and peft, checked before anything starts."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Protocol

from profiler.config.architecture import FUSED_PROJECTION_NAMES, MODEL_TYPES, OTHER_TARGETS, PROJECTION_NAMES
from profiler.domain.architecture import Architecture
from profiler.domain.builtin_models import find_builtin
from profiler.domain.errors import Fault, nearest
from profiler.domain.gpu import KNOWN_GPUS
from profiler.domain.gpu_names import find_gpu
from profiler.domain.optimizers import Optimizer
from profiler.domain.recipe import Recipe
from profiler.domain.trial import (
    ALL_LINEAR,
    ZERO_OF_WEIGHTS,
    Attention,
    Backend,
    DistributedType,
    Dtype,
    Logprobs,
    OffloadDevice,
    TrialSpec,
    Tuning,
    VllmMode,
    Weights,
    key_named,
)

_ALLOC_CONF = re.compile(r"[a-z_0-9]+:(\[[^\[\]]+\]|[^,:\[\]]+)(,[a-z_0-9]+:(\[[^\[\]]+\]|[^,:\[\]]+))*")


class Sound(Protocol):
    """Protocol of `FieldReader.sound`: whether none of some keys has a fault."""

    def __call__(self, *keys: str) -> bool:
        """Return whether a rule between `keys` can be checked."""


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """One rule and the keys that it reads.

    It is skipped where one of them already has a fault, or has no meaning in the recipe of the trial.
    """

    keys: tuple[str, ...]
    check: Callable[[TrialSpec, Architecture | None], Iterator[Fault]]


def broken_rules(spec: TrialSpec, architecture: Architecture | None, *, sound: Sound) -> list[Fault]:
    """Return the faults of the rules that `spec` breaks. Rules of the model need its `architecture`."""
    rules = [rule for rule in _RULES if sound("recipe", *rule.keys) and _applies(rule, spec)]
    return [fault for rule in rules for fault in rule.check(spec, architecture)]


def _applies(rule: _Rule, spec: TrialSpec) -> bool:
    return all(spec.recipe in key_named(key).recipes for key in rule.keys)


def is_alloc_conf(text: str) -> bool:
    """Return whether `text` has the form of PYTORCH_ALLOC_CONF; torch checks its keys and values."""
    compact = "".join(text.split())
    return not compact or _ALLOC_CONF.fullmatch(compact) is not None


def in_layer_order(names: Sequence[str]) -> tuple[str, ...]:
    """Return module names, each once, in the order of a layer and then by name: for peft they are a set."""
    known = (*PROJECTION_NAMES, *FUSED_PROJECTION_NAMES, *OTHER_TARGETS)
    unique = {name.strip() for name in names}
    return tuple(sorted(unique, key=lambda name: (known.index(name) if name in known else len(known), name)))


def _whole_groups(spec: TrialSpec, _: Architecture | None) -> Iterator[Fault]:
    """Check the rule of `GRPOConfig.__post_init__` in trl 1.16."""
    rows, generations, processes = spec.per_device_train_batch_size, spec.steps_per_generation, spec.num_processes
    generated = rows * generations * processes
    if generated % spec.num_generations == 0:
        return
    step = spec.num_generations // gcd(spec.num_generations, generations * processes)
    enough = -(-rows // step) * step
    names, factors = "per_device_train_batch_size x steps_per_generation", f"{rows} x {generations}"
    if processes > 1:
        names, factors = f"{names} x num_processes", f"{factors} x {processes}"
    yield Fault(
        key="num_generations",
        found=str(spec.num_generations),
        problem=f"must divide the completions generated at once, {names} = {factors} = {generated}",
        hint=f"The next batch that it divides is per_device_train_batch_size={enough}.",
    )


def _within_context(spec: TrialSpec, architecture: Architecture | None) -> Iterator[Fault]:
    if architecture is None:
        return
    context = architecture.max_position_embeddings
    tokens = spec.max_prompt_length + spec.max_completion_length
    if tokens <= context:
        return
    longest = context - spec.max_prompt_length
    yield Fault(
        key="max_completion_length",
        found=str(spec.max_completion_length),
        problem=(
            f"with max_prompt_length={spec.max_prompt_length} a row has {tokens} tokens, but the context of "
            f"{spec.model} is {context}"
        ),
        hint=f"Use at most max_completion_length={longest}." if longest > 0 else "Use a shorter max_prompt_length.",
    )


def _rows_within_context(spec: TrialSpec, architecture: Architecture | None) -> Iterator[Fault]:
    if architecture is None or spec.max_length is None or spec.max_length <= architecture.max_position_embeddings:
        return
    yield Fault(
        key="max_length",
        found=str(spec.max_length),
        problem=f"is more than the context of {spec.model}, which has {architecture.max_position_embeddings} tokens",
        hint=f"Use at most max_length={architecture.max_position_embeddings}.",
    )


def _qlora_needs_a_gpu(spec: TrialSpec, _: Architecture | None) -> Iterator[Fault]:
    if spec.tuning is Tuning.QLORA and spec.backend is Backend.CPU:
        yield Fault(
            key="tuning",
            found=spec.tuning,
            problem="needs backend=cuda, emulated or simulated, because bitsandbytes' 4-bit layers are made on a GPU",
            hint="Use tuning=lora on the CPU.",
        )


def _offloading_needs_a_gpu(spec: TrialSpec, _: Architecture | None) -> Iterator[Fault]:
    """Check `OffloadActivations` of trl 1.16, which asks torch for the accelerator."""
    if spec.activation_offloading and spec.recipe is Recipe.SFT and spec.backend is Backend.CPU:
        yield Fault(
            key="activation_offloading",
            found="true",
            problem="needs backend=cuda, emulated or simulated with recipe=sft, as trl's offloading asks for a GPU",
            hint="Use recipe=grpo on the CPU, which is offloaded by torch.",
        )


def _offloading_is_of_one_gpu(spec: TrialSpec, _: Architecture | None) -> Iterator[Fault]:
    if spec.activation_offloading and spec.num_processes > 1:
        yield Fault(
            key="activation_offloading",
            found="true",
            problem=f"was never compared on several GPUs, and num_processes is {spec.num_processes}",
            hint="Set num_processes=1, or use `python -m profiler.run` with your own script.",
        )


def _critic_is_whole(spec: TrialSpec, _: Architecture | None) -> Iterator[Fault]:
    """Check that a critic is a second model of the same size, trained as a whole on one GPU."""
    if not spec.critic:
        return
    checks = (
        ("tuning", spec.tuning.value, spec.tuning is Tuning.FULL, "Use tuning=full."),
        ("num_processes", str(spec.num_processes), spec.num_processes == 1, "Set num_processes=1."),
        ("activation_offloading", "true", not spec.activation_offloading, "Set activation_offloading=false."),
        ("use_liger_kernel", "true", not spec.use_liger_kernel, "Set use_liger_kernel=false."),
    )
    yield from _not_constructed("critic=true", "which is trained as a whole on one GPU", checks)


def _batches_by_tokens(spec: TrialSpec, _: Architecture | None) -> Iterator[Fault]:
    """Check that the rows of an optimizer step can be split by tokens (verl asks for the same limit)."""
    limit = spec.ppo_max_token_len_per_gpu
    if limit is None:
        return
    tokens = spec.max_prompt_length + spec.max_completion_length
    if limit < tokens:
        problem = f"is less than one row, because prompt and completion of this trial have {tokens} tokens"
        hint = f"Use at least ppo_max_token_len_per_gpu={tokens}."
        yield Fault(key="ppo_max_token_len_per_gpu", found=str(limit), problem=problem, hint=hint)
    generation, accumulation = spec.steps_per_generation, spec.gradient_accumulation_steps
    aligned = generation % accumulation == 0
    checks = (
        ("num_processes", str(spec.num_processes), spec.num_processes == 1, "Set num_processes=1."),
        ("logprobs", "minibatch", spec.logprobs is not Logprobs.MINIBATCH, "Use logprobs=fused, full or sliced."),
        ("steps_per_generation", str(generation), aligned, f"Use a multiple of {accumulation}."),
    )
    yield from _not_constructed("use_dynamic_bsz=true", "which splits the rows of whole optimizer steps", checks)


def _not_constructed(key: str, what: str, checks: Iterable[tuple[str, str, bool, str]]) -> Iterator[Fault]:
    """Yield a fault for each other key, its value and hint, where the check is false."""
    for other, found, is_possible, hint in checks:
        if not is_possible:
            yield Fault(key=other, found=found, problem=f"is not combined with {key}, {what}", hint=hint)


def _flash_attention_runs(spec: TrialSpec, _: Architecture | None) -> Iterator[Fault]:
    if spec.attn_implementation is not Attention.FLASH_ATTENTION_2:
        return
    gpu = find_gpu(spec.gpu)
    reason = ""
    if spec.backend is Backend.CPU:
        reason = "needs backend=cuda, emulated or simulated, because its kernels are CUDA only"
    elif spec.backend.names_its_card and gpu is not None and not gpu.chip.has_flash_attention:
        reason = f"needs an Ampere card or newer, which {spec.gpu} is not"
    elif spec.dtype is Dtype.FLOAT32 and not spec.bf16:
        reason = "needs 16-bit values, so dtype=bfloat16, dtype=float16 or bf16=true"
    if reason:
        yield Fault(
            key="attn_implementation",
            found=spec.attn_implementation,
            problem=reason,
            hint="Use attn_implementation=sdpa.",
        )


def _sdpa_exists(spec: TrialSpec, architecture: Architecture | None) -> Iterator[Fault]:
    """Check `PreTrainedModel._sdpa_can_dispatch` of transformers 5.23: only a stated sdpa is an error."""
    if architecture is not None and not architecture.has_sdpa and spec.attn_implementation is Attention.SDPA:
        yield Fault(
            key="attn_implementation",
            found=spec.attn_implementation,
            problem=f"transformers has no sdpa for {architecture.model_type}",
            hint="Use attn_implementation=eager, or null for transformers' default.",
        )


def _pretrained_weights_exist(spec: TrialSpec, _: Architecture | None) -> Iterator[Fault]:
    builtin = find_builtin(spec.model)
    if spec.weights is Weights.PRETRAINED and builtin is not None and not builtin.hub_ids:
        yield Fault(
            key="weights",
            found=spec.weights,
            problem=f"model={spec.model} has no published weights, so only random ones",
            hint="Use weights=random, or a hub id or a local folder as model.",
        )


def _targets_exist(spec: TrialSpec, architecture: Architecture | None) -> Iterator[Fault]:
    targets = spec.lora_target_modules
    if targets is None or targets == (ALL_LINEAR,) or architecture is None:
        return
    if architecture.model_type not in MODEL_TYPES or architecture.num_experts > 1:
        # The names of its modules are unknown, or its experts are no linear layers; peft checks them.
        return
    layers = FUSED_PROJECTION_NAMES if architecture.model_type == "phi3" else PROJECTION_NAMES
    known = (*layers, *OTHER_TARGETS)
    for name in targets:
        if name not in known:
            yield Fault(
                key="lora_target_modules",
                found=name,
                problem=f"must be {ALL_LINEAR} alone or names among {', '.join(known)}",
                hint=nearest(name, [*known, ALL_LINEAR]),
            )


_FOUR_BITS = "bitsandbytes 4-bit"


def _checkpoint_is_counted(spec: TrialSpec, architecture: Architecture | None) -> Iterator[Fault]:
    """Check that the weights of a quantised checkpoint are counted as they are: only those of QLoRA are."""
    if architecture is None or not architecture.quantization:
        return
    is_of_qlora = architecture.quantization == _FOUR_BITS
    if is_of_qlora and spec.tuning is Tuning.QLORA:
        return
    yield Fault(
        key="model",
        found=spec.model,
        problem=f"its checkpoint is quantised ({architecture.quantization}), which tuning={spec.tuning} does not count",
        hint="Use tuning=qlora." if is_of_qlora else "Name the model that is not quantised.",
    )


def _takes_a_part_of_the_card(spec: TrialSpec, _: Architecture | None) -> Iterator[Fault]:
    """Check vLLM's own rule (`CacheConfig.gpu_memory_utilization`)."""
    part = spec.vllm_gpu_memory_utilization
    if part is not None and not 0 < part <= 1:
        yield Fault(key="vllm_gpu_memory_utilization", found=f"{part:g}", problem="must be more than 0 and at most 1")


def _engine_is_shared_evenly(spec: TrialSpec, architecture: Architecture | None) -> Iterator[Fault]:
    """Check trl's rule (`VLLMGeneration._init_vllm`), and vLLM's on heads (`ModelConfig.verify_with_parallel_config`).

    The rule on heads of keys and values is that of `Qwen2Attention` in vLLM.
    """
    gpus, problem, fitting = spec.vllm_tensor_parallel_size, "", spec.num_processes
    if spec.num_processes % gpus:
        problem = f"must divide num_processes={spec.num_processes}, because as many GPUs share each engine of vLLM"
    elif architecture is not None:
        heads, keys = architecture.num_attention_heads, architecture.num_key_value_heads
        if heads % gpus:
            problem, fitting = f"must divide the {heads} attention heads of {spec.model}", gcd(gpus, heads)
        elif keys % gpus and gpus % keys:
            problem = f"must divide the {keys} heads of keys and values of {spec.model}, or be a multiple of them"
            fitting = gcd(gpus, keys)
    if problem:
        largest = max(size for size in range(1, gpus) if fitting % size == 0)
        yield Fault(
            key="vllm_tensor_parallel_size",
            found=str(gpus),
            problem=problem,
            hint=f"Use vllm_tensor_parallel_size={largest}.",
        )


def _engine_accepts_prompts(spec: TrialSpec, architecture: Architecture | None) -> Iterator[Fault]:
    """Check that vLLM takes the length (`_get_and_verify_max_len`) and the prompts."""
    length, problem, hint = spec.vllm_max_model_length, "", ""
    if length is None:
        return
    if architecture is not None and length > (context := architecture.max_position_embeddings):
        problem = f"is more than the context of {spec.model}, which has {context} tokens"
        hint = f"Use at most vllm_max_model_length={context}."
    elif length <= spec.max_prompt_length:
        problem = f"leaves nothing for completions after max_prompt_length={spec.max_prompt_length}"
        hint = f"Use vllm_max_model_length={spec.max_prompt_length + spec.max_completion_length}."
    if problem:
        yield Fault(key="vllm_max_model_length", found=str(length), problem=problem, hint=hint)


def only_estimated(specs: Iterable[TrialSpec]) -> list[Fault]:
    """Return a fault per key that no trial of a sweep has yet, though the closed form counts it."""
    faults: list[Fault] = []
    for spec in specs:
        faults.extend(_engines_not_run(spec))
        if spec.reward_models:
            faults.append(_only_estimated("reward_models", ",".join(spec.reward_models), "reward models"))
        if spec.per_device_eval_batch_size is not None:
            rows = str(spec.per_device_eval_batch_size)
            faults.append(_only_estimated("per_device_eval_batch_size", rows, "evaluations"))
        if spec.use_liger_kernel and not spec.backend.reads_counters:
            faults.append(_only_estimated("use_liger_kernel", "true", "Liger's kernels on a simulated card"))
        if spec.gpu is not None and spec.gpu not in KNOWN_GPUS:
            faults.append(_only_estimated("gpu", spec.gpu, "trials on a card that has a size only"))
        if spec.num_processes > 1:
            faults.extend(_processes_not_run(spec))
        if spec.tuning is Tuning.QLORA and spec.zero_stage == ZERO_OF_WEIGHTS:
            problem = "a sweep does not make weights in 4 bits with zero_stage=3, which shards weights as they are made"
            faults.append(Fault(key="tuning", found="qlora", problem=problem, hint="Use zero_stage=2, or tuning=lora."))
    return list(dict.fromkeys(faults))


def _engines_not_run(spec: TrialSpec) -> Iterator[Fault]:
    """Yield the faults of vLLM where a sweep does not run it."""
    if not spec.use_vllm:
        return
    if spec.vllm_mode is VllmMode.SERVER:
        yield Fault(
            key="vllm_mode",
            found="server",
            problem="a sweep does not run vLLM on other GPUs",
            hint="Use vllm_mode=colocate, or `python -m profiler.estimate`.",
        )
    if spec.backend is Backend.CPU:
        problem = "needs backend=cuda, emulated or simulated, because trl runs vLLM on the GPU that trains"
        yield Fault(key="use_vllm", found="true", problem=problem, hint="Set use_vllm=false on the CPU.")
    if spec.tuning is Tuning.QLORA:
        yield _only_estimated("tuning", "qlora", "vLLM with weights in 4 bits")
    if spec.vllm_tensor_parallel_size > 1:
        size = str(spec.vllm_tensor_parallel_size)
        yield _only_estimated("vllm_tensor_parallel_size", size, "an engine of vLLM on several GPUs")
    tokens = spec.max_prompt_length + spec.max_completion_length
    if spec.vllm_max_model_length is not None and spec.vllm_max_model_length < tokens:
        yield Fault(
            key="vllm_max_model_length",
            found=str(spec.vllm_max_model_length),
            problem=f"would cut completions, because prompt and completion of this trial have {tokens} tokens",
            hint=f"Use at least vllm_max_model_length={tokens}.",
        )
    if spec.recipe is not Recipe.GRPO:
        yield _only_estimated("recipe", spec.recipe, "vLLM with this recipe")


def _processes_not_run(spec: TrialSpec) -> Iterator[Fault]:
    """Yield the faults of several processes where a sweep does not run them."""
    if spec.backend is Backend.SIMULATED:
        yield Fault(
            key="num_processes",
            found=str(spec.num_processes),
            problem="a sweep runs several GPUs with backend=cuda or emulated, and this trial has backend=simulated",
            hint="Add backend=emulated, or use `python -m profiler.estimate`.",
        )
    if spec.backend is Backend.CPU and spec.distributed_type is not DistributedType.MULTI_GPU:
        problem = "shards on GPUs only, and this trial has backend=cpu"
        found = spec.distributed_type.value
        yield Fault(key="distributed_type", found=found, problem=problem, hint="Use multi_gpu, or backend=emulated.")


def _takes_all_processes(spec: TrialSpec, _: Architecture | None) -> Iterator[Fault]:
    """Check that the way to train fits the number of GPUs."""
    alone = spec.distributed_type is DistributedType.NO
    if alone and spec.num_processes > 1:
        problem, hint = f"does not train on num_processes={spec.num_processes}", "Use multi_gpu, fsdp or deepspeed."
    elif not alone and spec.num_processes == 1:
        problem, hint = "needs several GPUs, and num_processes is 1", "Set num_processes to 2 or more."
    else:
        return
    yield Fault(key="distributed_type", found=spec.distributed_type.value, problem=problem, hint=hint)


def _is_a_version_of_fsdp(spec: TrialSpec, _: Architecture | None) -> Iterator[Fault]:
    if spec.fsdp_version not in (None, 1, 2):
        yield Fault(key="fsdp_version", found=str(spec.fsdp_version), problem="must be 1 or 2")


def _checkpoints_once(spec: TrialSpec, _: Architecture | None) -> Iterator[Fault]:
    """Check that activations are not checkpointed twice, which accelerate refuses."""
    if spec.fsdp_activation_checkpointing and spec.gradient_checkpointing:
        yield Fault(
            key="fsdp_activation_checkpointing",
            found="true",
            problem="cannot be combined with gradient_checkpointing=true",
            hint="Set gradient_checkpointing=false.",
        )


def _stage_offloads(spec: TrialSpec, _: Architecture | None) -> Iterator[Fault]:
    """Check that ZeRO shards what it offloads: `offload_optimizer` is of stages 1 to 3, `offload_param` of stage 3."""
    stage = spec.zero_stage
    for key, device, stages in (
        ("offload_optimizer_device", spec.offload_optimizer_device, (1, 2, 3)),
        ("offload_param_device", spec.offload_param_device, (3,)),
    ):
        if device is OffloadDevice.CPU and stage not in stages:
            needed = " or ".join(map(str, stages)) if len(stages) < 3 else "1, 2 or 3"
            problem = f"needs zero_stage={needed}, and it is {stage}"
            yield Fault(key=key, found="cpu", problem=problem, hint=f"Use zero_stage={stages[-1]}.")


def _offloaded_optimizer_is_adamw(spec: TrialSpec, _: Architecture | None) -> Iterator[Fault]:
    """Check `map_pytorch_optim_to_deepspeed` of accelerate 1.15: others would silently be another optimizer."""
    known = (Optimizer.ADAMW_TORCH, Optimizer.ADAMW_TORCH_FUSED)
    if spec.offload_optimizer_device is OffloadDevice.CPU and spec.optim not in known:
        yield Fault(
            key="optim",
            found=spec.optim.value,
            problem="with offload_optimizer_device=cpu accelerate runs DeepSpeed's AdamW on the CPU in its place",
            hint="Use optim=adamw_torch, which is the same optimizer.",
        )


def _backward_runs_once(spec: TrialSpec, _: Architecture | None) -> Iterator[Fault]:
    """Check that there is one backward per micro-batch, because accelerate's ends with DeepSpeed's step."""
    if spec.distributed_type is DistributedType.DEEPSPEED and spec.logprobs is Logprobs.MINIBATCH:
        yield Fault(
            key="logprobs",
            found="minibatch",
            problem="has a backward per row, and with distributed_type=deepspeed a backward ends with the step",
            hint="Use logprobs=fused, full or sliced.",
        )


def _only_estimated(key: str, found: str, what: str) -> Fault:
    hint = "Use `python -m profiler.estimate`, or leave the key out."
    return Fault(key=key, found=found, problem=f"a sweep does not run {what} yet", hint=hint)


_RULES = (
    _Rule(
        keys=(
            "num_generations",
            "per_device_train_batch_size",
            "gradient_accumulation_steps",
            "steps_per_generation",
            "num_processes",
        ),
        check=_whole_groups,
    ),
    _Rule(keys=("distributed_type", "num_processes"), check=_takes_all_processes),
    _Rule(keys=("fsdp_version",), check=_is_a_version_of_fsdp),
    _Rule(keys=("zero_stage", "offload_optimizer_device", "offload_param_device"), check=_stage_offloads),
    _Rule(keys=("offload_optimizer_device", "optim"), check=_offloaded_optimizer_is_adamw),
    _Rule(keys=("distributed_type", "logprobs"), check=_backward_runs_once),
    _Rule(keys=("fsdp_activation_checkpointing", "gradient_checkpointing"), check=_checkpoints_once),
    _Rule(keys=("use_vllm", "vllm_gpu_memory_utilization"), check=_takes_a_part_of_the_card),
    _Rule(keys=("use_vllm", "vllm_tensor_parallel_size", "num_processes", "model"), check=_engine_is_shared_evenly),
    _Rule(
        keys=("use_vllm", "vllm_max_model_length", "model", "max_prompt_length", "max_completion_length"),
        check=_engine_accepts_prompts,
    ),
    _Rule(keys=("model", "max_prompt_length", "max_completion_length"), check=_within_context),
    _Rule(keys=("model", "max_length"), check=_rows_within_context),
    _Rule(keys=("tuning", "backend"), check=_qlora_needs_a_gpu),
    _Rule(keys=("activation_offloading", "recipe", "backend"), check=_offloading_needs_a_gpu),
    _Rule(keys=("activation_offloading", "num_processes"), check=_offloading_is_of_one_gpu),
    _Rule(
        keys=("critic", "tuning", "num_processes", "activation_offloading", "use_liger_kernel"), check=_critic_is_whole
    ),
    _Rule(
        keys=(
            "use_dynamic_bsz",
            "ppo_max_token_len_per_gpu",
            "max_prompt_length",
            "max_completion_length",
            "gradient_accumulation_steps",
            "steps_per_generation",
            "num_processes",
            "logprobs",
        ),
        check=_batches_by_tokens,
    ),
    _Rule(keys=("attn_implementation", "backend", "gpu", "dtype", "bf16"), check=_flash_attention_runs),
    _Rule(keys=("attn_implementation", "model"), check=_sdpa_exists),
    _Rule(keys=("weights", "model"), check=_pretrained_weights_exist),
    _Rule(keys=("model", "tuning", "lora_target_modules"), check=_targets_exist),
    _Rule(keys=("model", "tuning"), check=_checkpoint_is_counted),
)
