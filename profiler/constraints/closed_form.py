"""Constraints of `estimate`, `solve` and `advise`: what has no closed form. The first that is broken answers."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from profiler.constraints.constraint import (
    Case,
    Constraint,
    Text,
    Where,
    anything,
    has_tower,
    one_of,
    other_than,
    stated,
)
from profiler.constraints.sweeps import RUN_SCRIPT, SWEEPS
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.machines.extras import simulation_hint
from profiler.domain.trials.optimizers import Optimizer, State
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import ZERO_OF_WEIGHTS, Attention, Backend, DistributedType, Dtype, Logprobs, Tuning

_closed_form = partial(Constraint, Where.CLOSED_FORM)

SHARDED = (DistributedType.FSDP, DistributedType.DEEPSPEED)
"""Ways to train in which GPUs have parts of the model."""

_UNKNOWN_LOGPROBS = other_than(Logprobs.FUSED, *(each for each in Logprobs if each.makes_all_logits))
_OTHER_STATES = one_of(*(each for each in Optimizer if each.traits.state not in (State.NONE, State.TWO_STATES)))
_NOT_BFLOAT16 = other_than(Dtype.BFLOAT16)
_ATTENTION = "lora_target_modules=[q_proj,k_proj,v_proj,o_proj]"
"""Linear layers of every mixture."""


def _simulate(case: Case) -> str:
    """Return what to do about a trial that a simulation knows: it is of one GPU, and several are emulated."""
    if case.spec.num_processes > 1:
        return _emulate(case)
    return simulation_hint(but=_refused_in_a_sweep(case, Backend.SIMULATED))


def _emulate(case: Case) -> str:
    """Return what to do about a trial of several GPUs."""
    return f"A sweep with backend=emulated runs it{_refused_in_a_sweep(case, Backend.EMULATED)}."


def _refused_in_a_sweep(case: Case, backend: Backend) -> str:
    """Return what has to be otherwise in the trial for a sweep to run it; nothing if it does."""
    there = replace(case, spec=replace(case.spec, backend=backend))
    keys = dict.fromkeys(next(iter(each.values)) for each in SWEEPS if each.is_broken(there))
    return f" with other values of {', '.join(keys)}" if keys else ""


def _is_mixture(architecture: Architecture) -> bool:
    return architecture.num_experts > 1


def _sharded(values: Mapping[str, object], hint: Text = _emulate) -> Constraint:
    """Return a constraint of trials that FSDP or DeepSpeed shards."""
    problem = "has no closed-form estimate together with distributed_type={spec.distributed_type}"
    return _closed_form({**values, "distributed_type": values.get("distributed_type", one_of(*SHARDED))}, problem, hint)


def _mixture(key: str, value: object, hint: Text = _simulate) -> Constraint:
    """Return a constraint of mixtures of experts."""
    problem = "has no closed-form estimate with a mixture of {model.num_experts} experts"
    return _closed_form({key: value, "model": anything}, problem, hint, model=_is_mixture)


def _tower(key: str, value: object, hint: str = RUN_SCRIPT) -> Constraint:
    """Return a constraint of models with a vision tower."""
    problem = "has no closed-form estimate with a model that has a vision tower ({model.model_type})"
    return _closed_form({key: value, "model": anything}, problem, hint, model=has_tower)


CLOSED_FORM = (
    _closed_form(
        {"use_dynamic_bsz": True},
        "a split of rows by tokens has no closed-form estimate, because the rows of its parts depend on lengths",
        _simulate,
    ),
    _closed_form(
        {"logprobs": _UNKNOWN_LOGPROBS, "critic": True},
        "has no closed-form estimate together with critic=true, which takes micro-batches whole",
        _simulate,
    ),
    _closed_form(
        {"steps_per_generation": anything, "gradient_accumulation_steps": anything, "critic": True},
        "has no closed-form estimate together with critic=true, whose gradients then wait for the policy",
        _simulate,
        when=lambda case: case.spec.steps_per_generation % case.spec.gradient_accumulation_steps,
    ),
    # Which activations are on the card depends on the order of the backward pass.
    _closed_form({"activation_offloading": True}, "offloaded activations have no closed-form estimate", _simulate),
    _sharded({"tuning": Tuning.QLORA, "distributed_type": DistributedType.FSDP}),
    _sharded({"fsdp_version": other_than(2), "distributed_type": DistributedType.FSDP}),
    _sharded({"fsdp_offload_params": True}),
    # No sweep runs these two with ZeRO-3 either.
    _sharded({"tuning": Tuning.QLORA, "zero_stage": ZERO_OF_WEIGHTS}, "Use zero_stage=2, or tuning=lora."),
    _sharded({"reward_models": stated, "zero_stage": ZERO_OF_WEIGHTS}, "Use zero_stage=2."),
    _sharded({"dtype": _NOT_BFLOAT16}),
    _sharded({"bf16": False}),
    _sharded({"optim": _OTHER_STATES}),
    _sharded({"logprobs": _UNKNOWN_LOGPROBS}),
    # `ParamWrapper.__init__` in peft 0.21's `tuners/lora/layer.py`.
    _closed_form(
        {"lora_dropout": other_than(0), "lora_target_modules": anything, "model": anything},
        "has adapters of experts, and peft refuses to drop a part of their inputs",
        f"Set lora_dropout=0, or name layers of the attention: {_ATTENTION}.",
        when=lambda case: case.adapts_experts,
    ),
    # Without autocast in bfloat16, transformers multiplies expert by expert.
    _mixture("dtype", _NOT_BFLOAT16),
    _mixture("bf16", False),
    _mixture("logprobs", other_than(Logprobs.FUSED)),
    _mixture("attn_implementation", Attention.EAGER),
    # Liger replaces the experts of some models by kernels of its own. A simulation has none of its kernels either.
    _mixture("use_liger_kernel", True, "Use use_liger_kernel=false."),
    _mixture("critic", True),
    _closed_form(
        {"lora_target_modules": anything, "model": anything},
        "has no closed-form estimate with a mixture of {model.num_experts} experts",
        f"Name layers of the attention: {_ATTENTION}.",
        when=lambda case: not case.counts_adapters,
        found=lambda case: ",".join(sorted(case.spec.lora_target_modules or ())),
    ),
    _tower("recipe", other_than(Recipe.GRPO)),
    _tower("distributed_type", one_of(*SHARDED)),
    _tower("tuning", Tuning.QLORA, "Use tuning=lora or tuning=full."),
    _tower("dtype", _NOT_BFLOAT16, "Use dtype=bfloat16."),
    _tower("logprobs", other_than(Logprobs.FUSED)),
    _tower("attn_implementation", Attention.EAGER, "Use attn_implementation=sdpa or flash_attention_2."),
    _tower("use_liger_kernel", True, "Use use_liger_kernel=false."),
)
