"""verl as a recipe: the phases of a job on one GPU, with the active model, and the others unless they are offloaded."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from profiler.analytical.formulas.parameters import lora_parameter_count, parameter_count
from profiler.analytical.formulas.value_models import critic_count
from profiler.analytical.formulas.verl_pass import (
    engine_weights_bytes,
    entropy_log_prob_bytes,
    entropy_update_bytes,
    forward_bytes,
    kv_demand_bytes,
    layer_backward_bytes,
    logits_bytes,
    pool_bytes,
    stack_bytes,
)
from profiler.analytical.timeline.instants import Bytes, Instant, InstantName
from profiler.analytical.timeline.sharding.verl import SHARDINGS, VerlSharding
from profiler.domain.architecture import Architecture
from profiler.domain.gpu import Gpu
from profiler.domain.memory import Category, Phase
from profiler.domain.verl import TrainedModel, VerlJob


class Component(StrEnum):
    """Categories of the memory of a sharded job."""

    ACTOR = "actor weights"
    ACTOR_GRADIENTS = "actor gradients"
    ACTOR_STATE = "actor optimizer"
    REFERENCE = "reference"
    CRITIC = "critic weights"
    CRITIC_GRADIENTS = "critic gradients"
    CRITIC_STATE = "critic optimizer"
    GATHERED = "gathered"
    ACTIVATIONS = "activations"
    LOGITS = "logits"
    POOL = "rollout pool"


class VerlPhase(StrEnum):
    """Phases of a step, in order."""

    ROLLOUT = "rollout"
    LOG_PROB = "log-prob"
    REFERENCE = "reference"
    UPDATE_CRITIC = "critic"
    UPDATE_ACTOR = "actor"


class Role(StrEnum):
    """The models of a job."""

    ACTOR = "actor"
    REFERENCE = "reference"
    CRITIC = "critic"


_MODELS: Mapping[Role, Mapping[Category, Component]] = {
    Role.ACTOR: {
        Category.WEIGHTS: Component.ACTOR,
        Category.GRADIENTS: Component.ACTOR_GRADIENTS,
        Category.OPTIMIZER_STATE: Component.ACTOR_STATE,
    },
    Role.REFERENCE: {Category.WEIGHTS: Component.REFERENCE},
    Role.CRITIC: {
        Category.WEIGHTS: Component.CRITIC,
        Category.GRADIENTS: Component.CRITIC_GRADIENTS,
        Category.OPTIMIZER_STATE: Component.CRITIC_STATE,
    },
}
"""The components of each model, by category."""
_SHARED: Mapping[Category, Component] = {
    Category.COMMUNICATION: Component.GATHERED,
    Category.ACTIVATIONS: Component.ACTIVATIONS,
    Category.LOGITS: Component.LOGITS,
    Category.ENGINE: Component.POOL,
}
"""The components that only the active model or the engine has."""

Parts = Mapping[Component, int]
Shardings = Mapping[Role, VerlSharding]


@dataclass(frozen=True, kw_only=True)
class VerlEstimate:
    """Memory of one GPU. Estimated, not yet measured; without NCCL and the CUDA context."""

    job: VerlJob
    gpu: Gpu
    phases: Mapping[VerlPhase, Parts]
    engine_weights_bytes: int
    """Inside the pool."""
    kv_demand_bytes: int
    """Size of a KV cache for all sequences at once."""

    @property
    def peak_phase(self) -> VerlPhase:
        """The phase with the most memory."""
        return max(self.phases, key=lambda phase: sum(self.phases[phase].values()))

    @property
    def peak_bytes(self) -> int:
        """Memory of the largest phase. Phases are never added up."""
        return sum(self.phases[self.peak_phase].values())

    @property
    def training_peak_bytes(self) -> int:
        """Memory of the largest phase except the rollout, whose pool is a setting and not a need of the job."""
        return max(sum(parts.values()) for phase, parts in self.phases.items() if phase is not VerlPhase.ROLLOUT)


def verl_estimate(job: VerlJob, architecture: Architecture, gpu: Gpu) -> VerlEstimate:
    """Return the memory of one GPU of `job` in each phase."""
    shardings = shardings_of(job, architecture)
    pool: Bytes = {Category.ENGINE: pool_bytes(job, gpu.memory_bytes)}
    found = {VerlPhase.ROLLOUT: _phase(shardings, None, _instant(Phase.ROLLOUT, InstantName.ENGINE, pool))}
    for phase, (role, instant) in _active(job, architecture, shardings).items():
        # An engine that never sleeps keeps its pool.
        resident = instant if job.free_cache_engine else replace(instant, sizes={**instant.sizes, **pool})
        found[phase] = _phase(shardings, role, resident)
    return VerlEstimate(
        job=job,
        gpu=gpu,
        phases={phase: found[phase] for phase in VerlPhase if phase in found},
        engine_weights_bytes=engine_weights_bytes(job, architecture),
        kv_demand_bytes=kv_demand_bytes(job, architecture),
    )


def shardings_of(job: VerlJob, architecture: Architecture) -> Shardings:
    """Return how the GPUs share each model of a job. With LoRA the reference is the actor without adapters."""
    whole = trained = int(parameter_count(architecture))
    if job.lora_rank:
        trained = int(lora_parameter_count(architecture, job.lora_rank, job.lora_target_modules))
    models = {Role.ACTOR: (job.actor, whole, trained)}
    if job.has_reference and not job.lora_rank:
        reference = TrainedModel(weight_bytes=2, param_offload=job.ref_param_offload)
        models[Role.REFERENCE] = (reference, whole, 0)
    if job.critic is not None:
        count = int(critic_count(architecture))
        models[Role.CRITIC] = (job.critic, count, count)
    return {
        role: SHARDINGS[job.strategy](job=job, architecture=architecture, model=model, values=values, trained=count)
        for role, (model, values, count) in models.items()
    }


def _active(
    job: VerlJob, architecture: Architecture, shardings: Shardings
) -> dict[VerlPhase, tuple[Role | None, Instant]]:
    """Return the model that is loaded for each phase, and the largest instant of it, without what is kept."""
    tokens = job.log_prob_max_tokens
    actor = shardings[Role.ACTOR]
    found: dict[VerlPhase, tuple[Role | None, Instant]] = {
        # The actor's log-probabilities come with the entropy; those of a reference do not.
        VerlPhase.LOG_PROB: (Role.ACTOR, _scoring(actor, entropy_log_prob_bytes(job, architecture, tokens))),
        VerlPhase.UPDATE_ACTOR: (Role.ACTOR, _largest_of_update(actor, _logits_of_update(job, architecture))),
    }
    if job.has_reference:
        # A reference that is offloaded streams its layers through what is gathered: it is not loaded.
        found[VerlPhase.REFERENCE] = (None, _scoring(actor, 0))
    if Role.CRITIC in shardings:
        found[VerlPhase.UPDATE_CRITIC] = (Role.CRITIC, _largest_of_update(shardings[Role.CRITIC], 0))
    return found


def _instant(phase: Phase, name: InstantName, sizes: Bytes) -> Instant:
    return Instant(phase=phase, name=name, sizes=sizes)


def _phase(shardings: Shardings, active: Role | None, instant: Instant) -> Parts:
    """Return the models that stay on the GPU, those that are loaded for the phase, and what the active one computes."""
    found: dict[Component, int] = {}
    for role, sharding in shardings.items():
        kept = _on_gpu(sharding, instant if role is active else _IDLE)
        found |= {component: kept[category] for category, component in _MODELS[role].items() if category in kept}
    for category, component in _SHARED.items():
        found[component] = int(instant.sizes.get(category, 0))
    return {component: found[component] for component in Component if found.get(component)}


_IDLE = _instant(Phase.ROLLOUT, InstantName.ENGINE, {})
"""An instant at which a model does not compute."""


def _on_gpu(sharding: VerlSharding, instant: Instant) -> dict[Category, int]:
    """Return what of a model is on the GPU: what is not offloaded, and what verl loads back for the phase.

    Source: `load_fsdp_model_to_gpu` and `load_fsdp_optimizer` at the start of verl's `update_actor`: offloading saves
    memory in other phases but not in the update of the model itself. FSDP2's `offload_policy` saves it there too. The
    gradients of Megatron are in buffers that go with the weights (`offload_megatron_model_to_cpu`); `grad_offload` is
    read and not used in verl 0.7.
    """
    model, kept = sharding.model, sharding.kept(instant)
    trains, computes = instant.phase is Phase.BACKWARD, instant.phase in (Phase.SCORE, Phase.BACKWARD)
    found: dict[Category, int] = {}
    if not model.offload_policy and (computes or not model.param_offload):
        found[Category.WEIGHTS] = int(kept[Category.WEIGHTS].size)
    if not model.offload_policy and (trains or not model.optimizer_offload):
        found[Category.OPTIMIZER_STATE] = int(kept[Category.OPTIMIZER_STATE].size)
    if trains or not model.param_offload:
        found[Category.GRADIENTS] = int(sharding.reduced(instant).size)
    return found


def _scoring(sharding: VerlSharding, entropy: int) -> Instant:
    """Return the forward of log-probabilities, with the bytes of their entropy."""
    job, architecture = sharding.job, sharding.architecture
    tokens = job.log_prob_max_tokens
    logits = logits_bytes(job, architecture, tokens, training=False) + entropy
    alone = _instant(
        Phase.SCORE,
        InstantName.SCORE_LAYER,
        {
            Category.ACTIVATIONS: forward_bytes(architecture, tokens) // job.tensor_model_parallel_size,
            Category.LOGITS: logits,
        },
    )
    return sharding.shared(alone)


def _logits_of_update(job: VerlJob, architecture: Architecture) -> int:
    tokens = job.actor.max_tokens
    logits = logits_bytes(job, architecture, tokens, training=True)
    return logits + entropy_update_bytes(job, architecture, tokens)


def _largest_of_update(sharding: VerlSharding, logits: int) -> Instant:
    """Return the largest of four instants of a backward: at the head, in the last and in the first layer, at the end.

    Args:
        sharding: Of the model that is updated.
        logits: Bytes at the head.
    """
    job, architecture, model = sharding.job, sharding.architecture, sharding.model
    stack, one_layer = (
        stack_bytes(job, shape, model) for shape in (architecture, replace(architecture, num_hidden_layers=1))
    )
    in_layer = layer_backward_bytes(job, architecture, model)
    alone: Mapping[InstantName, Bytes] = {
        InstantName.BACKWARD_HEAD: {Category.ACTIVATIONS: stack, Category.LOGITS: logits},
        InstantName.BACKWARD_LAYER: {Category.ACTIVATIONS: stack + in_layer},
        InstantName.BACKWARD_FIRST_LAYER: {Category.ACTIVATIONS: one_layer + in_layer},
        InstantName.BACKWARD_END: {},
    }
    instants = [sharding.shared(_instant(Phase.BACKWARD, name, sizes)) for name, sizes in alone.items()]
    return max(instants, key=lambda instant: int(instant.total_bytes))
