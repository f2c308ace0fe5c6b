"""The estimate of one trial: the largest of its instants."""

from collections.abc import Iterable

from profiler.analytical.baselines import rule_of_thumb
from profiler.analytical.closed_form import refuse_without_form
from profiler.analytical.timeline.cached import peak_reserved_bytes
from profiler.analytical.timeline.instants import Instant
from profiler.analytical.timeline.recipes.registry import trial_instants
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.memory import Category, Phase
from profiler.domain.runs.outcome import Estimate
from profiler.domain.runs.readings import CategoryShare
from profiler.domain.trials.trial import TrialSpec


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
