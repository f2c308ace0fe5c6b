"""For which trials there is a closed form."""

from collections.abc import Callable, Mapping, Sequence

from profiler.analytical.formulas.parameters import (
    adapted_experts,
    expert_names,
    has_fused_experts,
    projections,
)
from profiler.domain.architecture import Architecture
from profiler.domain.errors import Fault, UsageError
from profiler.domain.extras import simulation_hint
from profiler.domain.optimizers import State
from profiler.domain.recipe import Recipe
from profiler.domain.trial import (
    ALL_LINEAR,
    ZERO_OF_WEIGHTS,
    Attention,
    DistributedType,
    Dtype,
    Logprobs,
    TrialSpec,
    Tuning,
)

_STATES = (State.NONE, State.TWO_STATES)
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
"""Linear layers of every mixture."""
_LOGPROBS = (Logprobs.FUSED, *(each for each in Logprobs if each.makes_all_logits))

_Check = tuple[str, object, bool]
"""A key, its value, and whether there is a formula for it."""


def refuse_without_form(spec: TrialSpec, architecture: Architecture) -> None:
    """Raise the error of `estimate` if there is no closed form for the trial.

    Raises:
        UsageError: There is none.
    """
    refuse_model(architecture)
    if (fault := _fault(spec, architecture)) is not None:
        raise UsageError([fault])


def has_form(spec: TrialSpec, architecture: Architecture) -> bool:
    """Return whether there is a closed form for the trial."""
    if not architecture.has_closed_form:
        return False
    return _fault(spec, architecture) is None


def _fault(spec: TrialSpec, architecture: Architecture) -> Fault | None:
    return (
        _constructed_fault(spec)
        or _offloading_fault(spec)
        or _sharding_fault(spec)
        or _mixture_fault(spec, architecture)
        or _tower_fault(spec, architecture)
    )


def refuse_model(architecture: Architecture, *, of_verl: bool = False) -> None:
    """Raise the error of `estimate` if there is no closed form for the model.

    Args:
        architecture: The model.
        of_verl: Whether verl trains it, whose formulas know neither experts nor vision towers.

    Raises:
        UsageError: It is a mixture of experts without a formula, or of a family that is not known.
    """
    is_mixture, has_tower = architecture.num_experts > 1, architecture.vision is not None
    if architecture.has_closed_form and not (of_verl and (is_mixture or has_tower)):
        return
    problem = "is of a family whose layers have no closed-form estimate"
    if is_mixture:
        where = " in a job of verl" if of_verl else ""
        problem = f"a mixture of {architecture.num_experts} experts has no closed-form estimate{where}"
    elif has_tower:
        problem = "a model with a vision tower has no closed-form estimate in a job of verl"
    hint = "" if of_verl else simulation_hint()
    raise UsageError([Fault(key="model", found=architecture.model_type, problem=problem, hint=hint)])


def _offloading_fault(spec: TrialSpec) -> Fault | None:
    """Refuse offloaded activations: which of them are on the card depends on the order of the backward pass."""
    if not spec.activation_offloading:
        return None
    problem = "offloaded activations have no closed-form estimate"
    return Fault(key="activation_offloading", found="true", problem=problem, hint=simulation_hint())


def _constructed_fault(spec: TrialSpec) -> Fault | None:
    """Return the first key for which the closed form of a constructed trial has no formula."""
    if spec.use_dynamic_bsz:
        problem = (
            "a split of rows by tokens has no closed-form estimate, because the rows of its parts depend on lengths"
        )
        return Fault(key="use_dynamic_bsz", found="true", problem=problem, hint=simulation_hint())
    if not spec.critic:
        return None
    generation = spec.steps_per_generation
    checks: tuple[_Check, ...] = (
        ("logprobs", spec.logprobs, spec.logprobs in _LOGPROBS),
        ("steps_per_generation", generation, generation % spec.gradient_accumulation_steps == 0),
    )
    for key, found, is_known in checks:
        if not is_known:
            problem = "has no closed-form estimate together with critic=true, whose gradients then wait for the policy"
            if key == "logprobs":
                problem = "has no closed-form estimate together with critic=true, which takes micro-batches whole"
            return Fault(key=key, found=str(found), problem=problem, hint=simulation_hint())
    return None


def _sharding_fault(spec: TrialSpec) -> Fault | None:
    """Return the first key for which the closed form of FSDP or DeepSpeed has no formula."""
    if spec.distributed_type not in _OWN_CHECKS:
        return None
    checks: tuple[_Check, ...] = (
        *_OWN_CHECKS[spec.distributed_type](spec),
        ("dtype", spec.dtype, spec.dtype is Dtype.BFLOAT16),
        ("bf16", "false", spec.bf16),
        ("optim", spec.optim, spec.optim.traits.state in _STATES),
        ("logprobs", spec.logprobs, spec.logprobs in _LOGPROBS),
    )
    for key, found, is_known in checks:
        if not is_known:
            problem = f"has no closed-form estimate together with distributed_type={spec.distributed_type}"
            hint = _OF_WHOLE_WEIGHTS.get(key, _EMULATED_HINT) if spec.zero_stage == ZERO_OF_WEIGHTS else _EMULATED_HINT
            return Fault(key=key, found=str(found), problem=problem, hint=hint)
    return None


_EMULATED_HINT = "A sweep with backend=emulated runs it."
_OF_WHOLE_WEIGHTS: Mapping[str, str] = {
    "tuning": "Use zero_stage=2, or tuning=lora.",
    "reward_models": "Use zero_stage=2.",
}
"""What no sweep runs with ZeRO-3 either (`config/only_estimated.py`)."""


def _checks_of_fsdp(spec: TrialSpec) -> tuple[_Check, ...]:
    return (
        ("tuning", spec.tuning, spec.tuning is not Tuning.QLORA),
        ("fsdp_version", spec.fsdp_version, spec.fsdp_version == 2),
        ("fsdp_offload_params", "true", not spec.fsdp_offload_params),
    )


def _checks_of_deepspeed(spec: TrialSpec) -> tuple[_Check, ...]:
    shards_weights = spec.zero_stage == ZERO_OF_WEIGHTS
    return (
        ("tuning", spec.tuning, spec.tuning is not Tuning.QLORA or not shards_weights),
        ("reward_models", ",".join(spec.reward_models or ()), not spec.reward_models or not shards_weights),
    )


_OWN_CHECKS: Mapping[DistributedType, Callable[[TrialSpec], tuple[_Check, ...]]] = {
    DistributedType.FSDP: _checks_of_fsdp,
    DistributedType.DEEPSPEED: _checks_of_deepspeed,
}


def _mixture_fault(spec: TrialSpec, architecture: Architecture) -> Fault | None:
    """Return the first key for which the closed form of a mixture of experts has no formula.

    Liger replaces the experts of some models by kernels of its own. Without autocast in bfloat16, transformers
    multiplies expert by expert.
    """
    if architecture.num_experts <= 1:
        return None
    targets = spec.lora_target_modules or ()
    experts = adapted_experts(architecture, targets)
    if spec.lora_dropout > 0 and (experts.gate_up or experts.down):
        # `ParamWrapper.__init__` in peft 0.21's `tuners/lora/layer.py`.
        problem = "has adapters of experts, and peft refuses to drop a part of their inputs"
        hint = f"Set lora_dropout=0, or name layers of the attention: lora_target_modules=[{','.join(_ATTENTION)}]."
        return Fault(key="lora_dropout", found=f"{spec.lora_dropout:g}", problem=problem, hint=hint)
    checks: tuple[_Check, ...] = (
        ("dtype", spec.dtype, spec.dtype is Dtype.BFLOAT16),
        ("bf16", "false", spec.bf16),
        ("logprobs", spec.logprobs, spec.logprobs is Logprobs.FUSED),
        ("attn_implementation", spec.attn_implementation, spec.attn_implementation is not Attention.EAGER),
        ("use_liger_kernel", "true", not spec.use_liger_kernel),
        ("critic", "true", not spec.critic),
        ("lora_target_modules", ",".join(sorted(targets)), _can_adapt(spec, architecture, targets)),
    )
    for key, found, is_known in checks:
        if not is_known:
            problem = f"has no closed-form estimate with a mixture of {architecture.num_experts} experts"
            return Fault(key=key, found=str(found), problem=problem, hint=_MIXTURE_HINTS.get(key) or simulation_hint())
    return None


_MIXTURE_HINTS: Mapping[str, str] = {
    "lora_target_modules": f"Name layers of the attention: lora_target_modules=[{','.join(_ATTENTION)}].",
    "use_liger_kernel": "Use use_liger_kernel=false.",  # not simulated either (`config/only_estimated.py`)
}


def _tower_fault(spec: TrialSpec, architecture: Architecture) -> Fault | None:
    """Return the first key for which the closed form of a model with a vision tower has no formula."""
    if architecture.vision is None:
        return None
    checks: tuple[_Check, ...] = (
        ("recipe", spec.recipe, spec.recipe is Recipe.GRPO),
        ("distributed_type", spec.distributed_type, spec.distributed_type not in _OWN_CHECKS),
        ("tuning", spec.tuning, spec.tuning is not Tuning.QLORA),
        ("dtype", spec.dtype, spec.dtype is Dtype.BFLOAT16),
        ("logprobs", spec.logprobs, spec.logprobs is Logprobs.FUSED),
        ("attn_implementation", spec.attn_implementation, spec.attn_implementation is not Attention.EAGER),
        ("use_liger_kernel", "true", not spec.use_liger_kernel),
    )
    for key, found, is_known in checks:
        if not is_known:
            problem = f"has no closed-form estimate with a model that has a vision tower ({architecture.model_type})"
            return Fault(key=key, found=str(found), problem=problem, hint=_TOWER_HINTS.get(key, _SCRIPT_HINT))
    return None


_TOWER_HINTS: Mapping[str, str] = {
    "dtype": "Use dtype=bfloat16.",
    "tuning": "Use tuning=lora or tuning=full.",
    "attn_implementation": "Use attn_implementation=sdpa or flash_attention_2.",
    "use_liger_kernel": "Use use_liger_kernel=false.",
}
_SCRIPT_HINT = "To see what your script needs, run it: python -m profiler.run gpu=CARD train.py."


def _can_adapt(spec: TrialSpec, architecture: Architecture, targets: Sequence[str]) -> bool:
    """Return whether adapters of these layers have formulas.

    Of experts, gate and up are one parameter: peft refuses one of the two. Adapted experts that are sharded have no
    formula.
    """
    experts = adapted_experts(architecture, targets)
    if spec.distributed_type in _OWN_CHECKS and (experts.gate_up or experts.down or experts.router):
        return False
    if tuple(targets) == (ALL_LINEAR,):
        return True
    if experts.gate_up != ("up_proj" in targets and has_fused_experts(architecture)):
        return False
    return set(targets) <= {*(part.name for part in projections(architecture)), *expert_names(architecture)}
