"""The rule of a public report and our estimate of the same job, with each difference and its reason."""

from dataclasses import dataclass

from profiler.analytical.baselines.verl_report import (
    REPORT_OVERHEAD_BYTES,
    report_activation_bytes,
    report_models_bytes,
)
from profiler.analytical.formulas.models.parameters import parameter_count
from profiler.analytical.timeline.recipes.verl import Component, Role, VerlEstimate, VerlPhase, shardings_of
from profiler.domain.architectures.architecture import Architecture


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A size that we add to the report's (negative: subtract), and the reason."""

    reason: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class BaselineView:
    """Memory of one GPU during the update of the actor, by the report and by our estimate."""

    report_bytes: int
    ours_bytes: int
    """The sum of `report_bytes` and all differences."""
    differences: tuple[Difference, ...]


def baseline_view(found: VerlEstimate, architecture: Architecture) -> BaselineView:
    """Return the report's rule for the job of `found`, and each difference to our estimate.

    The KV cache of the report is a constant for each of three models, not a rule, so it is in neither.
    """
    job, parts = found.job, found.phases[VerlPhase.UPDATE_ACTOR]
    parameters = int(parameter_count(architecture))
    checkpointing, offloading = job.actor.gradient_checkpointing, job.actor.activation_offload
    has_critic = job.critic is not None
    activations = report_activation_bytes(
        architecture, batch=1, tokens=job.actor.max_tokens, checkpointing=checkpointing, offloading=offloading
    )
    actor = report_models_bytes(parameters, has_reference=False, has_critic=False) // job.n_gpus
    with_reference = report_models_bytes(parameters, has_reference=job.has_reference, has_critic=False) // job.n_gpus
    everything = report_models_bytes(parameters, has_reference=job.has_reference, has_critic=has_critic) // job.n_gpus
    report = everything + activations + REPORT_OVERHEAD_BYTES
    reduced = int(shardings_of(job, architecture)[Role.ACTOR].gradients.size)
    kept_gradients = 0 if job.actor.offload_policy else reduced
    whole_gradients = parts.get(Component.ACTOR_GRADIENTS, 0) - kept_gradients
    kept = _sum(found, Component.ACTOR, Component.ACTOR_GRADIENTS, Component.ACTOR_STATE) - whole_gradients
    terms = {
        "weights, gradients, state: kept in float32, or on the host": kept - actor,
        "the reference is sharded, or offloaded, or the actor itself": _sum(found, Component.REFERENCE)
        - (with_reference - actor),
        "the critic's gradients are freed, and it may be offloaded": _sum(
            found, Component.CRITIC, Component.CRITIC_GRADIENTS, Component.CRITIC_STATE
        )
        - (everything - with_reference),
        "layers are gathered whole to compute": parts.get(Component.GATHERED, 0),
        "gradients are whole before they are reduced": whole_gradients,
        "activations: a recomputed layer, or all that it saves": parts.get(Component.ACTIVATIONS, 0) - activations,
        "logits, which the report leaves out": parts.get(Component.LOGITS, 0),
        "a rollout engine that does not sleep": parts.get(Component.POOL, 0),
        "2 GB of overhead, which we do not assume": -REPORT_OVERHEAD_BYTES,
    }
    ours = sum(parts.values())
    differences = tuple(Difference(reason=reason, size_bytes=size) for reason, size in terms.items() if size)
    return BaselineView(report_bytes=report, ours_bytes=ours, differences=differences)


def _sum(found: VerlEstimate, *components: Component) -> int:
    return sum(found.phases[VerlPhase.UPDATE_ACTOR].get(component, 0) for component in components)
