"""For which trials there is a closed form."""

from collections.abc import Sequence

from profiler.analytical.formulas.models.parameters import (
    adapted_experts,
    expert_names,
    projections,
)
from profiler.constraints.commands import SHARDED
from profiler.constraints.constraint import Case
from profiler.constraints.table import fault_of_closed_form
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.errors import Fault, UsageError
from profiler.domain.machines.extras import simulation_hint
from profiler.domain.trials.trial import ALL_LINEAR, TrialSpec


def refuse_without_form(spec: TrialSpec, architecture: Architecture) -> None:
    """Raise the error of `estimate` if there is no closed form for the trial.

    Raises:
        UsageError: There is none.
    """
    refuse_model(architecture)
    if (fault := fault_of_closed_form(_case(spec, architecture))) is not None:
        raise UsageError([fault])


def has_form(spec: TrialSpec, architecture: Architecture) -> bool:
    """Return whether there is a closed form for the trial."""
    if not architecture.has_closed_form:
        return False
    return fault_of_closed_form(_case(spec, architecture)) is None


def refuse_model(architecture: Architecture, *, of_verl: bool = False, with_experts: bool = False) -> None:
    """Raise the error of `estimate` if there is no closed form for the model.

    Args:
        architecture: The model.
        of_verl: Whether verl trains it, whose formulas know no vision towers.
        with_experts: Whether those of the release of verl know experts.

    Raises:
        UsageError: It is a mixture of experts without a formula, of a family that is not known, or in verl one with
            layers of several kinds.
    """
    is_mixture, has_tower = architecture.num_experts > 1, architecture.vision is not None
    of_one_gpu = (is_mixture and not with_experts) or has_tower or bool(architecture.first_layers)
    if architecture.has_closed_form and not (of_verl and of_one_gpu):
        return
    problem = "is of a family whose layers have no closed-form estimate"
    if architecture.has_closed_form and architecture.first_layers:
        problem = "has layers of several kinds, which have no closed-form estimate in a job of verl"
    elif is_mixture:
        where = " in a job of verl" if of_verl else ""
        problem = f"a mixture of {architecture.num_experts} experts has no closed-form estimate{where}"
    elif has_tower:
        problem = "a model with a vision tower has no closed-form estimate in a job of verl"
    hint = "" if of_verl else simulation_hint()
    raise UsageError([Fault(key="model", found=architecture.model_type, problem=problem, hint=hint)])


def _case(spec: TrialSpec, architecture: Architecture) -> Case:
    """Return a trial with what the formulas say of its adapters."""
    if architecture.num_experts <= 1:
        return Case(spec=spec, architecture=architecture)
    targets = spec.lora_target_modules or ()
    experts = adapted_experts(architecture, targets)
    return Case(
        spec=spec,
        architecture=architecture,
        adapts_experts=experts.gate_up or experts.down,
        counts_adapters=_can_adapt(spec, architecture, targets),
    )


def _can_adapt(spec: TrialSpec, architecture: Architecture, targets: Sequence[str]) -> bool:
    """Return whether adapters of these layers have formulas.

    Of experts, gate and up are one parameter: peft refuses one of the two. Adapted experts that are sharded have no
    formula.
    """
    experts = adapted_experts(architecture, targets)
    if spec.distributed_type in SHARDED and (experts.gate_up or experts.down or experts.router):
        return False
    if tuple(targets) == (ALL_LINEAR,):
        return True
    names = expert_names(architecture)
    if names and (names[0] in targets) != (names[1] in targets):
        return False
    return set(targets) <= {*(part.name for part in projections(architecture)), *names}
