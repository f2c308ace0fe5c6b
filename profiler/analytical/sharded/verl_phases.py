"""Phases of a verl job on one GPU: the active model, and the others unless they are offloaded."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from profiler.analytical.formulas.critic import critic_count
from profiler.analytical.formulas.parameters import layer_parameter_count, parameter_count
from profiler.analytical.sharded.one_gpu import (
    engine_weights_bytes,
    entropy_log_prob_bytes,
    entropy_update_bytes,
    forward_bytes,
    gathered_bytes,
    kept_gradients_bytes,
    kept_weights_bytes,
    kv_demand_bytes,
    layer_backward_bytes,
    logits_bytes,
    optimizer_bytes,
    outside_parameters,
    pool_bytes,
    stack_bytes,
    trained_count,
    unreduced_gradients_bytes,
)
from profiler.domain.architecture import Architecture
from profiler.domain.gpu import Gpu
from profiler.domain.verl import Strategy, TrainedModel, VerlJob


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


Parts = Mapping[Component, int]


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
    phases: dict[VerlPhase, Parts] = {
        VerlPhase.ROLLOUT: _phase(job, architecture, {Component.POOL: pool_bytes(job, gpu.memory_bytes)}, at_work=None),
        VerlPhase.LOG_PROB: _phase(job, architecture, _old_log_prob(job, architecture), at_work=Component.ACTOR),
        VerlPhase.UPDATE_ACTOR: _phase(job, architecture, _update(job, architecture), at_work=Component.ACTOR_STATE),
    }
    if job.has_reference:
        reference = _log_prob(job, architecture)
        phases[VerlPhase.REFERENCE] = _phase(job, architecture, reference, at_work=Component.REFERENCE)
    if job.critic is not None:
        critic = _update_critic(job, architecture, job.critic)
        phases[VerlPhase.UPDATE_CRITIC] = _phase(job, architecture, critic, at_work=Component.CRITIC_STATE)
    if not job.free_cache_engine:
        # An engine that never sleeps keeps its pool.
        pool = {Component.POOL: pool_bytes(job, gpu.memory_bytes)}
        phases = {phase: {**parts, **pool} for phase, parts in phases.items()}
    return VerlEstimate(
        job=job,
        gpu=gpu,
        phases={phase: phases[phase] for phase in VerlPhase if phase in phases},
        engine_weights_bytes=engine_weights_bytes(job, architecture),
        kv_demand_bytes=kv_demand_bytes(job, architecture),
    )


def _phase(job: VerlJob, architecture: Architecture, transient: Parts, *, at_work: Component | None) -> Parts:
    """Return the models that stay on the GPU, those that are loaded for the phase, and `transient` memory."""
    kept = {**_kept(job, architecture, at_work), **transient}
    return {component: kept[component] for component in Component if kept.get(component)}


def _kept(job: VerlJob, architecture: Architecture, at_work: Component | None) -> dict[Component, int]:
    """Return the models on the GPU: those that are not offloaded, and those that verl loads back for the phase.

    Source: `load_fsdp_model_to_gpu` and `load_fsdp_optimizer` at the start of verl's `update_actor`: offloading saves
    memory in other phases but not in the update of the model itself. FSDP2's `offload_policy` saves it there too. The
    gradients of Megatron are in buffers that go with the weights (`offload_megatron_model_to_cpu`); `grad_offload` is
    read and not used in verl 0.7.
    """
    whole = int(parameter_count(architecture))
    actor, critic = job.actor, job.critic
    found = {}
    works = at_work in (Component.ACTOR, Component.ACTOR_STATE)
    if not actor.offload_policy and (works or not actor.param_offload):
        found[Component.ACTOR] = kept_weights_bytes(job, whole, actor.weight_bytes)
    if not actor.offload_policy and (at_work is Component.ACTOR_STATE or not actor.optimizer_offload):
        found[Component.ACTOR_STATE] = optimizer_bytes(job, trained_count(job, architecture), actor.weight_bytes)
    if job.strategy is Strategy.MEGATRON and not actor.param_offload:
        found[Component.ACTOR_GRADIENTS] = kept_gradients_bytes(job, trained_count(job, architecture), 4)
    # A reference that is offloaded streams its layers through `gathered`; with LoRA it is the actor without adapters.
    if job.has_reference and not job.lora_rank and not job.ref_param_offload:
        found[Component.REFERENCE] = kept_weights_bytes(job, whole, 2)
    if critic is not None:
        count = int(critic_count(architecture))
        is_training = at_work is Component.CRITIC_STATE
        if not critic.offload_policy and (is_training or not critic.param_offload):
            found[Component.CRITIC] = kept_weights_bytes(job, count, critic.weight_bytes)
        if job.strategy is Strategy.MEGATRON and not critic.param_offload:
            found[Component.CRITIC_GRADIENTS] = kept_gradients_bytes(job, count, 4)
        if not critic.offload_policy and (is_training or not critic.optimizer_offload):
            found[Component.CRITIC_STATE] = optimizer_bytes(job, count, critic.weight_bytes)
    return found


def _log_prob(job: VerlJob, architecture: Architecture) -> Parts:
    tokens = job.log_prob_max_tokens
    return {
        Component.GATHERED: gathered_bytes(job, architecture, training=False),
        Component.ACTIVATIONS: forward_bytes(architecture, tokens) // job.tensor_model_parallel_size,
        Component.LOGITS: logits_bytes(job, architecture, tokens, training=False),
    }


def _old_log_prob(job: VerlJob, architecture: Architecture) -> Parts:
    """Return the memory of the actor's log-probabilities, which come with the entropy; those of a reference do not."""
    parts = _log_prob(job, architecture)
    entropy = entropy_log_prob_bytes(job, architecture, job.log_prob_max_tokens)
    return {**parts, Component.LOGITS: parts[Component.LOGITS] + entropy}


def _update(job: VerlJob, architecture: Architecture) -> Parts:
    return _largest_instant(
        job,
        architecture,
        job.actor,
        trained=trained_count(job, architecture),
        logits=logits_bytes(job, architecture, job.actor.max_tokens, training=True)
        + entropy_update_bytes(job, architecture, job.actor.max_tokens),
        gradients=Component.ACTOR_GRADIENTS,
    )


def _update_critic(job: VerlJob, architecture: Architecture, critic: TrainedModel) -> Parts:
    return _largest_instant(
        job,
        architecture,
        critic,
        trained=int(critic_count(architecture)),
        logits=0,
        gradients=Component.CRITIC_GRADIENTS,
    )


def _largest_instant(
    job: VerlJob,
    architecture: Architecture,
    model: TrainedModel,
    *,
    trained: int,
    logits: int,
    gradients: Component,
) -> Parts:
    """Return the largest of four instants of a backward, with the gradients of earlier micro-batches.

    At the head, with its new gradient; in the last layer, whose gradients are reduced while those of the head wait; in
    the first layer, with the reduced gradients of the others; and at the end, when the gradients of the parameters
    outside layers are reduced.
    """
    reduced = 0 if model.offload_policy else kept_gradients_bytes(job, trained, model.weight_bytes)
    kept = reduced if model.accumulates or job.strategy is Strategy.MEGATRON else 0
    stack, outside = stack_bytes(job, architecture, model), outside_parameters(architecture)
    one_layer = stack_bytes(job, replace(architecture, num_hidden_layers=1), model)
    waiting = unreduced_gradients_bytes(job, outside, reducing=False)
    layer = unreduced_gradients_bytes(job, int(layer_parameter_count(architecture)), reducing=True)
    at_head: Parts = {gradients: kept + waiting, Component.ACTIVATIONS: stack, Component.LOGITS: logits}
    in_layer: Parts = {
        gradients: kept + waiting + layer,
        Component.ACTIVATIONS: stack + layer_backward_bytes(job, architecture, model),
    }
    in_first_layer: Parts = {
        gradients: reduced + waiting + layer,
        Component.ACTIVATIONS: one_layer + layer_backward_bytes(job, architecture, model),
    }
    at_end: Parts = {gradients: reduced + unreduced_gradients_bytes(job, outside, reducing=True)}
    largest = max((at_head, in_layer, in_first_layer, at_end), key=lambda parts: sum(parts.values()))
    return {**largest, Component.GATHERED: gathered_bytes(job, architecture, training=True)}
