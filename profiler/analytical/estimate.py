"""The estimate of one trial: whether there is a closed form for it, and the largest of its instants.

Reserved memory has two answers. `estimate` bounds it by a sum (`timeline/cached.py`), in the millisecond that a search
over thousands of trials has, and so do tables of them (`many.py`). `estimate_with_replay` replays the requests of one
trial (`replayed/`), in some 40 ms, for an answer about one trial.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from profiler.allocator.model.card_memory import AllocatorStats
from profiler.analytical.baselines import rule_of_thumb
from profiler.analytical.formulas.models.parameters import adapted_experts, expert_names, projections
from profiler.analytical.formulas.models.tensor_groups import outer_projections
from profiler.analytical.formulas.models.trained import bfloat16_tensors
from profiler.analytical.formulas.sizes.trial_keys import layer_kinds
from profiler.analytical.optimizers import has_wide_states
from profiler.analytical.replayed.generation import widened_products
from profiler.analytical.replayed.trial import has_replay, replayed_counters, replays_operations
from profiler.analytical.timeline.cached import peak_reserved_bytes
from profiler.analytical.timeline.instants import Instant, read_of_card
from profiler.analytical.timeline.recipes.registry import trial_instants
from profiler.constraints.constraint import Case
from profiler.constraints.table import fault_of_closed_form
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.architectures.families import family_of
from profiler.domain.cards.gpu import KNOWN_GPUS, Gpu
from profiler.domain.cards.gpu_names import find_gpu
from profiler.domain.errors import Fault, UsageError
from profiler.domain.machines.extras import simulation_hint
from profiler.domain.memory import Category, Phase
from profiler.domain.runs.outcome import Estimate
from profiler.domain.runs.readings import CategoryShare
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.trial import ALL_LINEAR, SHARDED, ZERO_OF_WEIGHTS, DistributedType, TrialSpec, Tuning


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
    is_mixture, has_tower = architecture.num_experts > 1, bool(architecture.vision or architecture.idle)
    of_one_gpu = (is_mixture and not with_experts) or has_tower or bool(architecture.first_layers)
    if architecture.has_closed_form and not (of_verl and of_one_gpu):
        return
    problem = "is of a family whose layers have no closed-form estimate"
    if family_of(architecture.model_type).layers.linear_inputs and not architecture.has_known_layers:
        problem = "has linear attention in other layers than all but every n-th, for which there is no closed form"
    elif architecture.has_closed_form and architecture.first_layers:
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
    wide = spec.optim is Optimizer.RMSPROP_8BIT and has_wide_states(bfloat16_tensors(spec, architecture))
    if architecture.num_experts <= 1:
        return Case(spec=spec, architecture=architecture, has_wide_states=wide)
    targets = spec.lora_target_modules or ()
    experts = adapted_experts(architecture, targets)
    return Case(
        spec=spec,
        architecture=architecture,
        adapts_experts=experts.gate_up or experts.down,
        has_wide_states=wide,
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
    parts = {part.name for kind in layer_kinds(architecture) for part in projections(kind)}
    parts |= {part.name for part in outer_projections(architecture)}
    return set(targets) <= {*parts, *names}


def phase_instants(spec: TrialSpec, architecture: Architecture) -> dict[Phase, Instant]:
    """Return the largest instant of each phase of the trial, in the order of a step."""
    return largest_of_phases(trial_instants(spec, architecture))


def largest_of_phases(instants: Iterable[Instant]) -> dict[Phase, Instant]:
    """Return the largest instant of each phase, the phases in the order of their first instants."""
    found: dict[Phase, Instant] = {}
    for instant in instants:
        best = found.get(instant.phase)
        if best is None or instant.total_bytes > best.total_bytes:
            found[instant.phase] = instant
    return found


def estimate(spec: TrialSpec, architecture: Architecture) -> Estimate:
    """Return the peaks of allocated and reserved memory, and the categories of the first.

    Holds for one GPU of a job that trains a decoder like Llama, with gated MLPs or experts, alone or with others by DDP
    or FSDP. Rollouts are those of transformers' `generate`, or of vLLM by its own accounting. Left out: rounding to
    multiples of 512 bytes and remainders that the allocator does not split off, by which the counter of a card is 0.2
    to 3 % higher (`roundup_power2_divisions` is not left out); the CUDA context; and scratch of kernels other than
    cuBLAS and attention by matrix products.

    Raises:
        UsageError: There is no closed form, as `refuse_without_form` says.
    """
    refuse_without_form(spec, architecture)
    instants = trial_instants(spec, architecture)
    peak = max(instants, key=lambda instant: int(instant.total_bytes))
    return Estimate(
        peak_allocated_bytes=int(peak.total_bytes),
        peak_reserved_bytes=int(peak_reserved_bytes(spec, architecture, instants)),
        peak_rule_bytes=int(rule_of_thumb(spec, architecture)),
        peak_phase=peak.phase,
        breakdown=tuple(
            CategoryShare(category=category, size_bytes=int(peak.sizes.get(category, 0)))
            for category in Category
            if peak.sizes.get(category, 0)
        ),
    )


MOST_REPLAYED = 64
"""Trials that are estimated one by one, with replays; more are estimated with arrays, and have a bound of reserved."""


def estimate_with_replay(spec: TrialSpec, architecture: Architecture) -> Estimate:
    """Return the estimate as of `with_replay`.

    Raises:
        UsageError: As in `estimate`.
    """
    return with_replay(estimate(spec, architecture), spec, architecture)


def with_replay(found: Estimate, spec: TrialSpec, architecture: Architecture) -> Estimate:
    """Return an estimate with reserved memory and fragments by a replay of the trial's requests.

    Without `has_replay` reserved memory is the bound, and fragments are not known.
    """
    if architecture.layer_inputs is not None or not has_replay(spec):
        return found
    replayed, known = _replayed_once(on_first_alike(spec, architecture), architecture)
    unreleasable, reserved = replayed.peak_unreleasable_bytes, replayed.peak_reserved_bytes
    if spec.distributed_type is DistributedType.FSDP or spec.zero_stage == ZERO_OF_WEIGHTS:  # a sum over streams
        unreleasable += found.peak_allocated_bytes - replayed.peak_allocated_bytes
    reserved = max(found.peak_allocated_bytes, reserved)
    return replace(found, peak_reserved_bytes=reserved, peak_unreleasable_bytes=unreleasable, replays_operations=known)


@lru_cache(maxsize=1024)
def _replayed_once(spec: TrialSpec, architecture: Architecture) -> tuple[AllocatorStats, bool]:
    """Replay a trial that an answer asks for several times: one about a file of trl does, for each of its releases."""
    return replayed_counters(spec, architecture), replays_operations(spec, architecture)


def on_first_alike(spec: TrialSpec, architecture: Architecture) -> TrialSpec:
    """Return the trial on the first card with the same requests: products with 4-bit weights go by the whole chip."""
    card = find_gpu(spec.gpu)
    if card is None:
        return spec

    def read(gpu: Gpu) -> Hashable:
        widens = widened_products(spec, architecture, gpu.chip) if spec.tuning is Tuning.QLORA else ()
        return read_of_card(gpu), widens

    of_card = read(card)
    return replace(spec, gpu=next((gpu.name for gpu in KNOWN_GPUS.values() if read(gpu) == of_card), spec.gpu))
