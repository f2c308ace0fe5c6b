"""Baselines: a published rule of thumb, the rule of a public report for verl, and the least time of a step on a card.

Memory of verl by the rule of a public report, as a baseline. Its numbers, and its units (GB of 10^9 bytes).

The report counts, for a bfloat16 model: an actor of weights, gradients of the same size and optimizer state of twice
the size; a reference of the size of the weights; for PPO a critic of the size of the actor. Activations and KV cache
are constants per model, and overhead is 2 GB. Sharding divides only the models. If a printed total does not follow from
its parts, both are given here.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from profiler.analytical.formulas.models.parameters import (
    is_mixture,
    output_width,
    parameter_count,
    projections,
    query_width,
)
from profiler.analytical.formulas.models.trained import trainable_parameter_count
from profiler.analytical.formulas.models.weights import keeps_reference_model
from profiler.analytical.formulas.sizes.quantities import Count, looked_up, where
from profiler.analytical.formulas.sizes.trial_keys import DecoderShape, TrialKeys, layer_kinds
from profiler.analytical.timeline.recipes.verl import Component, Role, VerlEstimate, VerlPhase, shardings_of
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.cards.card import Roofline
from profiler.domain.trials.optimizers import Optimizer, State
from profiler.domain.trials.trial import Dtype, Rollout, TrialSpec, Tuning

_PARAMETER_BYTES = 2
_REFERENCE_BYTES = 2
_GRADIENT_BYTES = 2
_OPTIMIZER_BYTES = 8
_8BIT_OPTIMIZER_BYTES = 4


def rule_of_thumb(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the bytes by the rule of the blog "GRPO VRAM requirements for the GPU poor" (Oxen.ai, 2025).

    Per parameter 2 B for the model and 2 B for a reference model; per trained parameter 2 B of gradients and 8 B of
    optimizer state, 4 B for an 8-bit optimizer. No activations, no logits, no rollout.

    Where the blog gives no rule, we assume: the reference counts if trl keeps one; adapters count as trained parameters
    only; 4-bit weights still count 2 B; an optimizer without figures (Adafactor, SGD) counts 8 B.

    By hand, qwen2.5-0.5b full without reference, AdamW: 494,032,768 x 12 B = 5,928,393,216 B.
    """
    parameters, trained = parameter_count(architecture), trainable_parameter_count(spec, architecture)
    reference = where(keeps_reference_model(spec), _REFERENCE_BYTES, 0)
    optimizer = looked_up(spec.optim, _optimizer_bytes)
    return parameters * (_PARAMETER_BYTES + reference) + trained * (_GRADIENT_BYTES + optimizer)


def _optimizer_bytes(optim: Optimizer) -> int:
    return _8BIT_OPTIMIZER_BYTES if optim.traits.state is State.EIGHT_BIT else _OPTIMIZER_BYTES


GB = 1_000_000_000

_WEIGHT_BYTES = 2
_ACTOR_MULTIPLE = 4
"""Weights, gradients of the same size, optimizer state of twice the size."""
_CHECKPOINTING_DIVISOR = 4
_OFFLOADING_RATIO = (3, 10)
REPORT_OVERHEAD_BYTES = 2 * GB


@dataclass(frozen=True, kw_only=True)
class ReportRow:
    """One model of the report's tables, with the printed totals."""

    model: str
    parameters: int
    """The rounded number: 7B is 7 x 10^9."""
    printed_total_gb: float
    """The total on one GPU, with activations, KV cache and overhead."""
    gpus: int
    printed_sharded_gb: float
    """The total per GPU, with FSDP over `gpus`."""


REPORT_ROWS = (
    ReportRow(model="3B", parameters=3 * GB, printed_total_gb=50.7, gpus=4, printed_sharded_gb=24.2),
    ReportRow(model="7B", parameters=7 * GB, printed_total_gb=109.0, gpus=8, printed_sharded_gb=32.8),
    ReportRow(model="32B", parameters=32 * GB, printed_total_gb=414.8, gpus=16, printed_sharded_gb=71.2),
)
"""The report's table names only the models. We chose the numbers of GPUs for which its parts give round totals."""

CLAIMED_GB: Mapping[str, int] = {"basic": 35, "optimised": 16, "extreme": 8}
"""The claimed memory per GPU for 7B on 8 GPUs, by the report's three configurations."""


def report_models_bytes(parameters: int, *, has_reference: bool, has_critic: bool) -> int:
    """Return the bytes of actor, reference and critic by the report.

    By hand, 7 x 10^9 parameters: GRPO (4 + 1) x 14 GB = 70 GB; PPO (4 + 1 + 4) x 14 GB = 126 GB; the saving is 44 %.
    """
    multiples = _ACTOR_MULTIPLE + has_reference + _ACTOR_MULTIPLE * has_critic
    return multiples * parameters * _WEIGHT_BYTES


def report_activation_bytes(
    architecture: Architecture, *, batch: int, tokens: int, checkpointing: bool, offloading: bool
) -> int:
    """Return the bytes of activations by the report: batch x length x hidden x layers x 2.

    A quarter of that with checkpointing, and 0.3 of it with offloading. By hand, 1 x 1,000 tokens, hidden size 3,584,
    28 layers: 200,704,000 B; with checkpointing 50,176,000 B; with both 15,052,800 B.
    """
    size = batch * tokens * architecture.hidden_size * architecture.num_hidden_layers * _WEIGHT_BYTES
    size = size // _CHECKPOINTING_DIVISOR if checkpointing else size
    return size * _OFFLOADING_RATIO[0] // _OFFLOADING_RATIO[1] if offloading else size


def report_sharded_gb(row: ReportRow) -> float:
    """Return the GB per GPU by the report's own parts: the models divided by the GPUs, everything else undivided.

    By hand, 7B on 8: 70 / 8 + (109 - 70) = 47.75 GB, where 32.8 is printed.
    """
    models = report_models_bytes(row.parameters, has_reference=True, has_critic=False) / GB
    return models / row.gpus + (row.printed_total_gb - models)


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
        "workspaces of cuBLAS": parts.get(Component.CUBLAS, 0),
        "a rollout engine that does not sleep": parts.get(Component.POOL, 0),
        "2 GB of overhead, which we do not assume": -REPORT_OVERHEAD_BYTES,
    }
    ours = sum(parts.values())
    differences = tuple(Difference(reason=reason, size_bytes=size) for reason, size in terms.items() if size)
    return BaselineView(report_bytes=report, ours_bytes=ours, differences=differences)


def _sum(found: VerlEstimate, *components: Component) -> int:
    return sum(found.phases[VerlPhase.UPDATE_ACTOR].get(component, 0) for component in components)


_BYTES = {True: 2.0, False: 4.0}
_FOUR_BIT_BYTES = 0.5


def least_step_s(spec: TrialSpec, architecture: Architecture, card: Roofline) -> float:
    """Return seconds below which no card of this kind can do one optimizer step of a trial.

    Counted are products with weights and of attention, and the weights that each decoded token reads. Left out, so that
    the real time is longer: all other operations, adapters, the optimizer, copies and communication, and Python.
    """
    half = spec.dtype is not Dtype.FLOAT32 or spec.mixed_precision
    peak = card.half_flops_per_s if half else card.single_flops_per_s
    rows = spec.training_rows
    width = spec.longest + (spec.max_prompt_length if spec.recipe.facts.has_prompts else 0)
    # A head of one score is left out.
    scored = spec.longest if spec.recipe.facts.has_lm_head else 0
    forward = _forward_flops(architecture, rows=rows, width=width, scored=scored)
    has_pass = spec.recipe.facts.has_reference_pass and spec.beta and not spec.precompute_ref_log_probs
    reference = 1 if has_pass else 0
    recomputed = 1 if spec.gradient_checkpointing else 0
    backward = 2 if spec.tuning is Tuning.FULL else 1
    trained = (1 + backward + recomputed + reference) * forward / peak * spec.gradient_accumulation_steps
    if not spec.recipe.facts.has_rollout or spec.rollout is Rollout.SYNTHETIC:
        return trained
    rollouts = max(1, spec.gradient_accumulation_steps // spec.steps_per_generation)
    return trained + rollouts * _rollout_s(spec, architecture, card, half=half)


def _rollout_s(spec: TrialSpec, architecture: Architecture, card: Roofline, *, half: bool) -> float:
    """Return the least time to decode one generation batch, token by token."""
    each = _FOUR_BIT_BYTES if spec.tuning is Tuning.QLORA else _BYTES[half]
    peak = card.half_flops_per_s if half else card.single_flops_per_s
    weights = _layer_weights(architecture) + architecture.vocab_size * architecture.hidden_size
    flops = 2 * weights * spec.generation_batch_size
    per_token = max(flops / peak, weights * each / card.memory_bytes_per_s)
    # vLLM with tensor parallelism splits weights and products among its GPUs.
    return per_token * spec.max_completion_length / (spec.vllm_tensor_parallel_size or 1)


def _forward_flops(architecture: Architecture, *, rows: int, width: int, scored: int) -> float:
    """Return the operations of one forward pass: two per weight and token, and causal attention.

    Those of a delta rule are left out.
    """
    layers = 2 * _layer_weights(architecture) * rows * width
    head = 2 * architecture.vocab_size * architecture.hidden_size * rows * scored
    heads = int(query_width(architecture) + output_width(architecture))
    full = sum(int(kind.num_hidden_layers) for kind in layer_kinds(architecture) if kind.linear is None)
    attention = full * heads * rows * width**2
    return layers + head + attention


def _layer_weights(architecture: Architecture) -> int:
    """Return the elements of all matrices of the decoder layers that one token is multiplied with."""
    found = 0
    for kind in layer_kinds(architecture):
        dense = sum(int(part.weights) for part in projections(kind))
        experts = 3 * kind.experts_per_token * kind.hidden_size * kind.expert_width if is_mixture(kind) else 0
        found += int(kind.num_hidden_layers) * int(dense + experts)
    return found
