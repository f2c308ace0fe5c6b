"""verl as a recipe: the phases of a job on one GPU, with the active model, and the others unless they are offloaded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from profiler.analytical.formulas.models.parameters import lora_parameter_count, parameter_count
from profiler.analytical.formulas.models.trained import BFLOAT16_BYTES
from profiler.analytical.formulas.models.weights import critic_count
from profiler.analytical.formulas.sizes.quantities import NOTHING, Term
from profiler.analytical.formulas.verl_pass import (
    engine_weights_bytes,
    entropy_log_prob_bytes,
    entropy_update_bytes,
    forward_bytes,
    head_bytes,
    kv_demand_bytes,
    layer_backward_bytes,
    logits_bytes,
    pool_bytes,
    reward_pool_bytes,
    stack_bytes,
    sync_bytes,
)
from profiler.analytical.timeline.instants import Instant, InstantName, workspace
from profiler.analytical.timeline.sharding.verl import SHARDINGS, VerlSharding, outside_parameters
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.cards.gpu import Gpu
from profiler.domain.memory import Category, Phase
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
    CUBLAS = "cuBLAS workspaces"
    STEP = "optimizer temporaries"
    POOL = "rollout pool"
    REWARD_POOL = "reward model's pool"


class VerlPhase(StrEnum):
    """Phases of a step, in order."""

    SYNC = "weight sync"
    ROLLOUT = "rollout"
    REWARD = "reward model"
    LOG_PROB = "log-prob"
    REFERENCE = "reference"
    UPDATE_CRITIC = "critic"
    STEP_CRITIC = "critic's step"
    UPDATE_ACTOR = "actor"
    STEP_ACTOR = "actor's step"


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
    Category.WORKSPACE: Component.STEP,
    Category.ENGINE: Component.POOL,
    Category.REWARD_MODEL: Component.REWARD_POOL,
}
"""The components that only the active model or an engine has."""
_WEIGHTS_OF = {Role.ACTOR: Category.WEIGHTS, Role.REFERENCE: Category.REFERENCE, Role.CRITIC: Category.CRITIC}
_CATEGORIES: Mapping[Component, Category] = (
    {component: category for category, component in _SHARED.items()}
    | {
        component: _WEIGHTS_OF[role] if category is Category.WEIGHTS else category
        for role, components in _MODELS.items()
        for category, component in components.items()
    }
    | {Component.CUBLAS: Category.WORKSPACE}
)
"""The category that each component has in any trial."""
_PHASES: Mapping[VerlPhase, Phase] = {
    VerlPhase.SYNC: Phase.ROLLOUT,
    VerlPhase.ROLLOUT: Phase.ROLLOUT,
    VerlPhase.REWARD: Phase.SCORE,
    VerlPhase.LOG_PROB: Phase.SCORE,
    VerlPhase.REFERENCE: Phase.SCORE,
    VerlPhase.UPDATE_CRITIC: Phase.CRITIC,
    VerlPhase.STEP_CRITIC: Phase.CRITIC,
    VerlPhase.UPDATE_ACTOR: Phase.BACKWARD,
    VerlPhase.STEP_ACTOR: Phase.OPTIMIZER,
}
"""The phase that each phase is of any trial; an update is its forward and backward."""

_BETWEEN_SCORES_AND_UPDATE = (VerlPhase.REFERENCE, VerlPhase.UPDATE_CRITIC, VerlPhase.STEP_CRITIC)
"""Phases of other models after the actor has scored."""

_OF_ENGINES = (VerlPhase.SYNC, VerlPhase.ROLLOUT, VerlPhase.REWARD)
"""Phases in which an engine of others is awake."""

Parts = Mapping[Component, int]
Shardings = Mapping[Role, VerlSharding]


@dataclass(frozen=True, kw_only=True)
class VerlEstimate:
    """Memory of one GPU. Estimated, not yet measured; without NCCL and the CUDA context."""

    job: VerlJob
    gpu: Gpu
    phases: Mapping[VerlPhase, Parts]
    instants: Mapping[VerlPhase, Instant]
    """The same by the phases and categories of any trial, with the words of each category."""
    engine_weights_bytes: int
    """Inside the pool."""
    kv_demand_bytes: int
    """Size of a KV cache for all sequences at once."""
    engine_sizes: tuple[int, ...] = (1,)
    """Tensor parallel sizes that the heads and the GPUs allow the engine, ascending."""

    @property
    def peak_phase(self) -> VerlPhase:
        """The phase with the most memory."""
        return max(self.phases, key=lambda phase: sum(self.phases[phase].values()))

    @property
    def peak_bytes(self) -> int:
        """Memory of the largest phase. Phases are never added up."""
        return sum(self.phases[self.peak_phase].values())

    @property
    def engine_peak_bytes(self) -> int:
        """Memory of the largest phase in which an engine is awake."""
        return max(sum(parts.values()) for phase, parts in self.phases.items() if phase in _OF_ENGINES)

    @property
    def training_peak_bytes(self) -> int:
        """Memory of the largest phase without an engine, whose pool is a setting and not a need of the job."""
        return max(sum(parts.values()) for phase, parts in self.phases.items() if phase not in _OF_ENGINES)


def verl_estimate(job: VerlJob, architecture: Architecture, gpu: Gpu) -> VerlEstimate:
    """Return the memory of one GPU of `job` in each phase."""
    shardings = shardings_of(job, architecture)
    pool = Term(
        pool_bytes(job, gpu.memory_bytes), lambda: f"the engine's pool, {job.gpu_memory_utilization:g} of the card"
    )
    of_reward = Term(reward_pool_bytes(job, gpu.memory_bytes), lambda: "the pool of the reward model's engine")
    engine = Instant(phase=Phase.ROLLOUT, name=InstantName.POOL, terms={Category.ENGINE: pool})
    active: dict[VerlPhase, tuple[Role | None, Instant]] = {VerlPhase.ROLLOUT: (None, engine)}
    if job.workers.update_bucket_bytes:
        active[VerlPhase.SYNC] = _sync(job, architecture, shardings[Role.ACTOR], pool)
    if job.workers.reward is not None:
        scores = Instant(phase=Phase.ROLLOUT, name=InstantName.POOL, terms={Category.REWARD_MODEL: of_reward})
        active[VerlPhase.REWARD] = (None, scores)
    active.update(_active(job, architecture, shardings))
    for phase, (role, instant) in active.items():
        # An engine that never sleeps keeps its pool.
        kept = {
            Category.ENGINE: NOTHING if job.free_cache_engine else pool,
            Category.REWARD_MODEL: NOTHING if job.workers.reward_sleeps else of_reward,
        }
        own = {category: term for category, term in kept.items() if term.size and category not in instant.terms}
        active[phase] = (role, instant.with_terms(own) if own else instant)
    ordered = {phase: active[phase] for phase in VerlPhase if phase in active}
    terms = {
        phase: _with_what_stays(job, architecture, gpu, phase, _phase(shardings, role, instant))
        for phase, (role, instant) in ordered.items()
    }
    return VerlEstimate(
        job=job,
        gpu=gpu,
        phases={phase: {part: int(term.size) for part, term in found.items()} for phase, found in terms.items()},
        instants={phase: _of_any_trial(phase, ordered[phase][1].name, found) for phase, found in terms.items()},
        engine_weights_bytes=engine_weights_bytes(job, architecture),
        kv_demand_bytes=kv_demand_bytes(job, architecture),
        engine_sizes=tuple(
            size
            for size in range(1, job.n_gpus + 1)
            if job.n_gpus % size == 0 and architecture.num_attention_heads % size == 0
        ),
    )


def _with_what_stays(
    job: VerlJob, architecture: Architecture, gpu: Gpu, phase: VerlPhase, parts: Mapping[Component, Term]
) -> Mapping[Component, Term]:
    """Return the parts with cuBLAS's workspaces, and what idle models keep gathered outside of layers.

    One process per GPU trains, scores and sends all models: the workspaces of its two threads are there once.
    The reference has its own among what is gathered while it scores; the actor's waits for its update. With LoRA the
    actor scores as the reference, and what it has gathered is there once.
    """
    found = {**parts, Component.CUBLAS: workspace(gpu.name)}
    size = outside_parameters(architecture) * BFLOAT16_BYTES if job.n_gpus > 1 else 0
    root = Term(size, lambda: "what is outside of layers, still gathered")
    if job.workers.keeps_reference_root and job.has_reference and phase is not VerlPhase.REFERENCE:
        found[Component.REFERENCE] = root
    computes = job.workers.counts_adapters and phase is VerlPhase.REFERENCE
    if job.workers.keeps_actor_root and phase in _BETWEEN_SCORES_AND_UPDATE and not computes:
        found[Component.GATHERED] = found.get(Component.GATHERED, NOTHING).plus(root)
    return {component: found[component] for component in Component if component in found and found[component].size}


def _sync(job: VerlJob, architecture: Architecture, actor: VerlSharding, pool: Term) -> tuple[Role | None, Instant]:
    """Return the instant at which weights go to the rollout engine, whose own are awake, one whole one at a time.

    The shards are loaded, but for parameters of FSDP 2 without adapters, of which each is moved alone.
    """
    engine = Term(engine_weights_bytes(job, architecture), lambda: "the engine's weights")
    size = sync_bytes(job, architecture, int(actor.weights.size), outside_parameters(architecture))
    sent = Term(size, lambda: "what is gathered to be sent")
    terms = {Category.COMMUNICATION: sent, Category.ENGINE: engine if job.free_cache_engine else pool}
    is_moved_alone = job.strategy is Strategy.FSDP2 and not job.lora_rank
    phase = Phase.ROLLOUT if is_moved_alone or job.actor.offload_policy else Phase.SCORE
    return Role.ACTOR, Instant(phase=phase, name=InstantName.POOL, terms=terms)


def shardings_of(job: VerlJob, architecture: Architecture) -> Shardings:
    """Return how the GPUs share each model of a job. With LoRA the reference is the actor without adapters."""
    whole = trained = int(parameter_count(architecture))
    if job.lora_rank:
        trained = int(lora_parameter_count(architecture, job.lora_rank, job.lora_target_modules))
        whole += trained if job.workers.counts_adapters else 0
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
    actor = shardings[Role.ACTOR]
    found: dict[VerlPhase, tuple[Role | None, Instant]] = {
        # The actor's log-probabilities come with the entropy; those of a reference do not.
        VerlPhase.LOG_PROB: (Role.ACTOR, _scoring(actor, of_actor=True)),
        VerlPhase.UPDATE_ACTOR: (Role.ACTOR, _largest_of_update(actor, _logits_of_update(job, architecture))),
        VerlPhase.STEP_ACTOR: (Role.ACTOR, _step(actor)),
    }
    if job.has_reference:
        # A reference that is offloaded streams its layers through what is gathered: it is not loaded.
        role = Role.ACTOR if job.workers.counts_adapters else None
        found[VerlPhase.REFERENCE] = (role, _scoring(shardings.get(Role.REFERENCE, actor), of_actor=False))
    if Role.CRITIC in shardings:
        found[VerlPhase.UPDATE_CRITIC] = (Role.CRITIC, _largest_of_update(shardings[Role.CRITIC], 0))
        found[VerlPhase.STEP_CRITIC] = (Role.CRITIC, _step(shardings[Role.CRITIC]))
    return found


def _phase(shardings: Shardings, active: Role | None, instant: Instant) -> Mapping[Component, Term]:
    """Return the models that stay on the GPU, those that are loaded for the phase, and what the active one computes."""
    found: dict[Component, Term] = {}
    for role, sharding in shardings.items():
        kept = _on_gpu(sharding, instant if role is active else _IDLE)
        found |= {component: kept[category] for category, component in _MODELS[role].items() if category in kept}
    for category, component in _SHARED.items():
        found[component] = instant.terms.get(category, NOTHING)
    return {component: found[component] for component in Component if component in found and found[component].size}


def _of_any_trial(phase: VerlPhase, name: InstantName, parts: Mapping[Component, Term]) -> Instant:
    """Return the largest instant of a phase by the phases and categories of any trial."""
    found: dict[Category, list[Term]] = {}
    for component, term in parts.items():
        found.setdefault(_CATEGORIES[component], []).append(term)
    sums = {category: _sum(terms) for category, terms in found.items()}
    return Instant(phase=_PHASES[phase], name=name, terms=sums)


def _sum(terms: Sequence[Term]) -> Term:
    """Return the sum of several models, in the order of the models."""
    return Term(sum(int(term.size) for term in terms), lambda: " + ".join(term.words() for term in terms))


_IDLE = Instant(phase=Phase.ROLLOUT, name=InstantName.POOL, terms={})
"""An instant at which a model does not compute."""


def _on_gpu(sharding: VerlSharding, instant: Instant) -> dict[Category, Term]:
    """Return what of a model is on the GPU: what is not offloaded, and what verl loads back for the phase.

    Source: `load_fsdp_model_to_gpu` and `load_fsdp_optimizer` at the start of verl's `update_actor`: offloading saves
    memory in other phases but not in the update of the model itself. FSDP2's `offload_policy` saves it there too. The
    gradients of Megatron are in buffers that go with the weights (`offload_megatron_model_to_cpu`); `grad_offload` is
    read and not used in verl 0.7.
    """
    model, kept = sharding.model, sharding.kept(instant)
    trains = instant.phase in (Phase.BACKWARD, Phase.OPTIMIZER)
    computes = trains or instant.phase is Phase.SCORE
    found: dict[Category, Term] = {}
    if not model.offload_policy and (computes or not model.param_offload):
        found[Category.WEIGHTS] = kept[Category.WEIGHTS]
    if not model.offload_policy and (trains or not model.optimizer_offload):
        found[Category.OPTIMIZER_STATE] = kept[Category.OPTIMIZER_STATE]
    if trains or not model.param_offload:
        found[Category.GRADIENTS] = sharding.reduced(instant)
    return found


def _scoring(sharding: VerlSharding, *, of_actor: bool) -> Instant:
    """Return the largest of the instants of a forward of log-probabilities: at its start, in a layer, and at the head.

    The actor's come with their entropy, the reference's do not. A layer's tensors are gone when logits are made. Only a
    reference on the host has more than what is gathered at the start.
    """
    job, architecture = sharding.job, sharding.architecture
    tokens = job.log_prob_max_tokens
    logits = logits_bytes(job, architecture, tokens, training=False)
    logits += entropy_log_prob_bytes(job, architecture, tokens, of_actor=of_actor)
    forward = forward_bytes(job, architecture, tokens, adapted=of_actor)
    alone: Mapping[InstantName, Mapping[Category, int]] = {
        InstantName.GATHERING: {},
        InstantName.SCORE_LAYER: {Category.ACTIVATIONS: forward // job.tensor_model_parallel_size},
        InstantName.SCORE_HEAD: {
            Category.ACTIVATIONS: head_bytes(job, architecture, tokens),
            Category.LOGITS: logits,
        },
    }
    instants = [_computed(sharding, Phase.SCORE, name, sizes, tokens) for name, sizes in alone.items()]
    return max(instants, key=lambda instant: int(instant.total_bytes))


def _computed(
    sharding: VerlSharding, phase: Phase, name: InstantName, sizes: Mapping[Category, int], tokens: int
) -> Instant:
    """Return an instant of the active model, whose activations and logits are those of `tokens`."""
    terms = {category: Term(size, lambda: f"{tokens:,} tokens") for category, size in sizes.items()}
    return sharding.shared(Instant(phase=phase, name=name, terms=terms))


def _logits_of_update(job: VerlJob, architecture: Architecture) -> int:
    tokens = job.actor.max_tokens
    logits = logits_bytes(job, architecture, tokens, training=True)
    return logits + entropy_update_bytes(job, architecture, tokens)


def _largest_of_update(sharding: VerlSharding, logits: int) -> Instant:
    """Return the largest instant of a backward: at the head, in the last and in the first layer, and at the end.

    Args:
        sharding: Of the model that is updated.
        logits: Bytes at the head.
    """
    job, architecture, model = sharding.job, sharding.architecture, sharding.model
    stack, one_layer = (
        stack_bytes(job, shape, model) for shape in (architecture, replace(architecture, num_hidden_layers=1))
    )
    in_layer = layer_backward_bytes(job, architecture, model)
    alone: dict[InstantName, Mapping[Category, int]] = {
        InstantName.BACKWARD_HEAD: {Category.ACTIVATIONS: stack, Category.LOGITS: logits},
        InstantName.BACKWARD_LAYER: {Category.ACTIVATIONS: stack + in_layer},
        InstantName.BACKWARD_FIRST_LAYER: {Category.ACTIVATIONS: one_layer + in_layer},
        InstantName.BACKWARD_END: {},
    }
    if architecture.tie_word_embeddings and not job.lora_rank and job.strategy is not Strategy.MEGATRON:
        alone[InstantName.BACKWARD_TIED] = {}
    instants = [_computed(sharding, Phase.BACKWARD, name, sizes, model.max_tokens) for name, sizes in alone.items()]
    return max(instants, key=lambda instant: int(instant.total_bytes))


def _step(sharding: VerlSharding) -> Instant:
    """Return the optimizer's step: gradients, states and its temporaries, with nothing gathered."""
    scratch = {Category.WORKSPACE: sharding.step_scratch}
    return sharding.shared(Instant(phase=Phase.OPTIMIZER, name=InstantName.STEP, terms=scratch))
