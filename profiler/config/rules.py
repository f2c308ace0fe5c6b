"""Rules between the keys of a trial, from trl, transformers and peft, checked before anything starts."""

import re
from collections.abc import Iterable, Iterator, Sequence
from math import gcd

from profiler.config.architecture import FUSED_PROJECTION_NAMES, MODEL_TYPES, OTHER_TARGETS, PROJECTION_NAMES
from profiler.config.context import CONTEXT_RULES
from profiler.config.rule import Rule, Sound
from profiler.config.sharding_rules import SHARDING_RULES
from profiler.config.vllm_rules import VLLM_RULES
from profiler.domain.architecture import Architecture
from profiler.domain.builtin_models import find_builtin
from profiler.domain.errors import Fault, nearest
from profiler.domain.gpu_names import find_gpu
from profiler.domain.recipe import Recipe
from profiler.domain.trial import (
    ALL_LINEAR,
    Attention,
    Backend,
    Dtype,
    Logprobs,
    TrialSpec,
    Tuning,
    Weights,
    key_named,
)

_ALLOC_CONF = re.compile(r"[a-z_0-9]+:(\[[^\[\]]+\]|[^,:\[\]]+)(,[a-z_0-9]+:(\[[^\[\]]+\]|[^,:\[\]]+))*")


def broken_rules(spec: TrialSpec, architecture: Architecture | None, *, sound: Sound) -> list[Fault]:
    """Return the faults of the rules that `spec` breaks. Rules of the model need its `architecture`."""
    rules = [rule for rule in _RULES if sound("recipe", *rule.keys) and _applies(rule, spec)]
    return [fault for rule in rules for fault in rule.check(spec, architecture)]


def _applies(rule: Rule, spec: TrialSpec) -> bool:
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
    known = (*layers, *_of_tower(architecture), *OTHER_TARGETS)
    for name in targets:
        if name not in known:
            yield Fault(
                key="lora_target_modules",
                found=name,
                problem=f"must be {ALL_LINEAR} alone or names among {', '.join(known)}",
                hint=nearest(name, [*known, ALL_LINEAR]),
            )


def _of_tower(architecture: Architecture) -> tuple[str, ...]:
    """Return the names of linear layers that only the vision tower has; peft takes them by the end of their paths."""
    if architecture.vision is None:
        return ()
    return ("qkv", "attn.proj", *(name for name in architecture.vision.mlp_names if name not in PROJECTION_NAMES))


def _has_a_language_model_head(spec: TrialSpec, architecture: Architecture | None) -> Iterator[Fault]:
    """Check the class that trl makes of the file (`create_model_from_path` in trl 1.16's `trainer/utils.py`)."""
    if architecture is not None and architecture.other_head:
        yield Fault(
            key="model",
            found=spec.model,
            problem=f"its config.json names {architecture.other_head}, which has no language model head",
            hint="Name a checkpoint of a causal language model.",
        )


def _drops_a_part(spec: TrialSpec, _: Architecture | None) -> Iterator[Fault]:
    if spec.lora_dropout >= 1:
        problem = "must be less than 1, because adapters of which everything is dropped learn nothing"
        yield Fault(key="lora_dropout", found=f"{spec.lora_dropout:g}", problem=problem)


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


_RULES = (
    Rule(
        keys=(
            "num_generations",
            "per_device_train_batch_size",
            "gradient_accumulation_steps",
            "steps_per_generation",
            "num_processes",
        ),
        check=_whole_groups,
    ),
    *SHARDING_RULES,
    *VLLM_RULES,
    *CONTEXT_RULES,
    Rule(keys=("lora_dropout",), check=_drops_a_part),
    Rule(keys=("model",), check=_has_a_language_model_head),
    Rule(keys=("tuning", "backend"), check=_qlora_needs_a_gpu),
    Rule(keys=("activation_offloading", "recipe", "backend"), check=_offloading_needs_a_gpu),
    Rule(keys=("activation_offloading", "num_processes"), check=_offloading_is_of_one_gpu),
    Rule(
        keys=("critic", "tuning", "num_processes", "activation_offloading", "use_liger_kernel"), check=_critic_is_whole
    ),
    Rule(
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
    Rule(keys=("attn_implementation", "backend", "gpu", "dtype", "bf16"), check=_flash_attention_runs),
    Rule(keys=("attn_implementation", "model"), check=_sdpa_exists),
    Rule(keys=("weights", "model"), check=_pretrained_weights_exist),
    Rule(keys=("model", "tuning", "lora_target_modules"), check=_targets_exist),
    Rule(keys=("model", "tuning"), check=_checkpoint_is_counted),
)
