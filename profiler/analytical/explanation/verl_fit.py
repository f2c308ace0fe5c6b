"""Whether a job of verl fits a card, and how long its rows can be on average where padding is removed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from profiler.analytical.estimate import largest_of_phases
from profiler.analytical.explanation.explained import (
    CardVerdict,
    ExplainedPhase,
    Fit,
    Unanswered,
    explained_phase,
    fit_of_memory,
)
from profiler.analytical.formulas.sizes.rounding import with_fragments
from profiler.analytical.formulas.verl_pass import pool_bytes
from profiler.analytical.timeline.recipes.verl import VerlEstimate, verl_estimate
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.cards.card import cuda_context_bytes, nccl_bytes
from profiler.domain.cards.gpu import KNOWN_GPUS, Gpu
from profiler.domain.memory import gib_text
from profiler.domain.verl import VerlJob


@dataclass(frozen=True, kw_only=True)
class VerlFit:
    """The verdict for one card, by the rule of a single GPU. Lengths are those of prompt and response together."""

    fit: Fit | Unanswered
    """With every row of the maximum length."""
    card: CardVerdict
    """The verdict by what is counted, likewise."""
    longest_row: int
    fits_up_to: int | None
    """Largest mean length of rows that fits; None if none does, or if padding is computed like tokens."""
    tight_up_to: int | None
    """Largest mean length of rows that fits or is tight; None likewise."""
    counted: Fit | None = None
    """The verdict for what is counted, where something has no formula; None otherwise."""
    reasons: tuple[str, ...] = ()
    """Why verl does not run the job, or what has no formula; empty for a verdict by memory."""


def engine_text(found: VerlEstimate) -> str:
    """Return why the rollout engine cannot start, with what to change; empty if its pool is larger than its weights.

    An engine also needs activations and a KV cache, which are not counted, so that it may need more.

    By hand, qwen2.5-32b on one of 64 H100: 61.0 GiB of weights, and 0.5 of 79.1 GiB.
    """
    job = found.job
    pool, weights = pool_bytes(job, found.gpu.memory_bytes), found.engine_weights_bytes
    if weights < pool:
        return ""
    of_all = weights * job.rollout_tensor_parallel_size
    size = next((each for each in found.engine_sizes if of_all < pool * each), None)
    part = weights * 100 // found.gpu.memory_bytes + 1
    ways = [
        *([f"rollout.tensor_model_parallel_size={size}"] if size is not None else ()),
        *([f"rollout.gpu_memory_utilization={part / 100:g}"] if part <= _MOST_PERCENT else ()),
    ]
    hint = f"use at least {' or '.join(ways)}" if ways else "use more GPUs, and tensor_model_parallel_size"
    return (
        f"The rollout engine does not start: gpu_memory_utilization={job.gpu_memory_utilization:g} of {found.gpu.name} "
        f"is {gib_text(pool)}, and its weights take {gib_text(weights)}; {hint}."
    )


_MOST_PERCENT = 95
"""Largest part of a card that is named: the rest is the CUDA context, and what others keep."""


def verl_card(found: VerlEstimate) -> CardVerdict:
    """Return whether the memory of each phase fits the card, with the largest share of fragments and the context.

    The pool of an engine is one block, so its phases have no fragments.
    """
    no_engine = engine_text(found)
    with_cache = max(found.engine_peak_bytes, int(with_fragments(found.training_peak_bytes)))
    return CardVerdict(
        gpu=found.gpu,
        fit=Fit.NO_ENGINE
        if no_engine
        else fit_of_memory(
            found.gpu, gpus=found.job.n_gpus, allocated_bytes=found.peak_bytes, reserved_bytes=with_cache
        ),
        peak_allocated_bytes=found.peak_bytes,
        peak_reserved_bytes=with_cache,
        context_bytes=cuda_context_bytes(found.gpu.compute_capability),
        nccl_bytes=nccl_bytes(found.gpu.compute_capability, found.job.n_gpus),
        missing=None,
        no_engine=no_engine,
    )


def verl_cards(job: VerlJob, architecture: Architecture, own: Gpu) -> tuple[CardVerdict, ...]:
    """Return the verdict by what is counted for each known card and the job's own, the smallest card first."""
    cards = sorted({**KNOWN_GPUS, own.name: own}.values(), key=lambda gpu: gpu.memory_bytes)
    return tuple(verl_card(verl_estimate(job, architecture, gpu)) for gpu in cards)


def verl_phases(found: VerlEstimate) -> tuple[ExplainedPhase, ...]:
    """Return the largest instant of each phase of any trial, in the order of a step."""
    return tuple(explained_phase(each) for each in largest_of_phases(found.instants.values()).values())


def verl_fit(
    job: VerlJob, job_at: Callable[[int], VerlJob], architecture: Architecture, gpu: Gpu, *, removes_padding: bool
) -> VerlFit:
    """Return the verdict for a job.

    Args:
        job: The job with every row of the maximum length.
        job_at: Returns the job whose rows have a mean length.
        architecture: Its model.
        gpu: The card.
        removes_padding: Whether the mean length counts.
    """
    longest = job.max_prompt_length + job.max_response_length

    def fit_at(tokens: int) -> Fit:
        return verl_card(verl_estimate(job_at(tokens), architecture, gpu)).fit

    def most(*fits: Fit) -> int | None:
        return _largest(lambda tokens: fit_at(tokens) in fits, longest) if removes_padding else None

    card = verl_card(verl_estimate(job, architecture, gpu))
    return VerlFit(
        fit=card.fit,
        card=card,
        longest_row=longest,
        fits_up_to=most(Fit.FITS),
        tight_up_to=most(Fit.FITS, Fit.TIGHT),
    )


def with_reasons(found: VerlFit, *, refused: Sequence[str], not_counted: Sequence[str]) -> VerlFit:
    """Return the verdict that is left where verl refuses a job, or where something has no formula.

    Args:
        found: The verdict for what is counted.
        refused: Why verl does not run the job.
        not_counted: What changes memory and has no formula.
    """
    if not refused and not not_counted:
        return found
    return replace(
        found,
        fit=Unanswered.NOT_POSSIBLE if refused else Unanswered.UNDECIDED,
        fits_up_to=None,
        tight_up_to=None,
        counted=None if refused else found.card.fit,
        reasons=tuple(refused or not_counted),
    )


def _largest(is_enough: Callable[[int], bool], maximum: int) -> int | None:
    """Return the largest number up to `maximum` for which `is_enough`, which is false above some number."""
    if not is_enough(1):
        return None
    low, high = 1, maximum
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if is_enough(middle) else (low, middle - 1)
    return low
