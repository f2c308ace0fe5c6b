"""For which trials there is a closed form."""

from collections.abc import Callable, Mapping

from profiler.domain.architecture import Architecture
from profiler.domain.errors import Fault, UsageError
from profiler.domain.extras import simulation_hint
from profiler.domain.optimizers import State
from profiler.domain.trial import DistributedType, Dtype, Logprobs, TrialSpec, Tuning

_STATES = (State.NONE, State.TWO_STATES)
_LOGPROBS = (Logprobs.FUSED, Logprobs.FULL)

_Check = tuple[str, object, bool]
"""A key, its value, and whether there is a formula for it."""


def refuse_without_form(spec: TrialSpec, architecture: Architecture) -> None:
    """Raise the error of `estimate` if there is no closed form for the trial.

    Raises:
        UsageError: There is none.
    """
    refuse_model(architecture)
    if (fault := _sharding_fault(spec)) is not None:
        raise UsageError([fault])


def has_form(spec: TrialSpec, architecture: Architecture) -> bool:
    """Return whether there is a closed form for the trial."""
    return architecture.has_closed_form and _sharding_fault(spec) is None


def refuse_model(architecture: Architecture) -> None:
    """Raise the error of `estimate` if there is no closed form for the model.

    Raises:
        UsageError: It is a mixture of experts, or of a family that is not known.
    """
    if architecture.has_closed_form:
        return
    problem = f"a mixture of {architecture.num_experts} experts has no closed-form estimate"
    if architecture.num_experts <= 1:
        problem = "is of a family whose layers have no closed-form estimate"
    raise UsageError([Fault(key="model", found=architecture.model_type, problem=problem, hint=simulation_hint())])


def _sharding_fault(spec: TrialSpec) -> Fault | None:
    """Return the first key for which the closed form of FSDP or DeepSpeed has no formula."""
    if spec.distributed_type not in _OWN_CHECKS:
        return None
    checks: tuple[_Check, ...] = (
        *_OWN_CHECKS[spec.distributed_type](spec),
        ("tuning", spec.tuning, spec.tuning is not Tuning.QLORA),
        ("dtype", spec.dtype, spec.dtype is Dtype.BFLOAT16),
        ("bf16", "false", spec.bf16),
        ("optim", spec.optim, spec.optim.traits.state in _STATES),
        ("logprobs", spec.logprobs, spec.logprobs in _LOGPROBS),
    )
    for key, found, is_known in checks:
        if not is_known:
            problem = f"has no closed-form estimate together with distributed_type={spec.distributed_type}"
            return Fault(key=key, found=str(found), problem=problem, hint="A sweep with backend=emulated runs it.")
    return None


def _checks_of_fsdp(spec: TrialSpec) -> tuple[_Check, ...]:
    return (
        ("fsdp_version", spec.fsdp_version, spec.fsdp_version == 2),
        ("fsdp_offload_params", "true", not spec.fsdp_offload_params),
    )


def _checks_of_deepspeed(spec: TrialSpec) -> tuple[_Check, ...]:
    return (("use_vllm", "true", not spec.use_vllm),)


_OWN_CHECKS: Mapping[DistributedType, Callable[[TrialSpec], tuple[_Check, ...]]] = {
    DistributedType.FSDP: _checks_of_fsdp,
    DistributedType.DEEPSPEED: _checks_of_deepspeed,
}
