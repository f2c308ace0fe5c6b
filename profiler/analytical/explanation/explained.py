"""An estimate with its reasons: phases, categories, the short form of each number, and the verdict for each card."""

from dataclasses import dataclass

from profiler.analytical.estimate import estimate, phase_instants
from profiler.analytical.explanation.cards import CardVerdict, all_cards
from profiler.analytical.timeline.instants import Instant, InstantName
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.cards.gpu_names import find_gpu
from profiler.domain.memory import Category, Phase
from profiler.domain.runs.outcome import Estimate
from profiler.domain.trials.trial import TrialSpec


@dataclass(frozen=True, kw_only=True)
class ExplainedShare:
    """Bytes of one category at one instant."""

    category: Category
    size_bytes: int
    short_form: str


@dataclass(frozen=True, kw_only=True)
class ExplainedPhase:
    """The largest instant of a phase."""

    phase: Phase
    instant: InstantName
    peak_allocated_bytes: int
    shares: tuple[ExplainedShare, ...]
    """Sum to `peak_allocated_bytes`."""


@dataclass(frozen=True, kw_only=True)
class ExplainedEstimate:
    """The estimate of a trial with all its parts."""

    spec: TrialSpec
    estimate: Estimate
    phases: tuple[ExplainedPhase, ...]
    cards: tuple[CardVerdict, ...]
    """The verdict for each known card, the smallest card first."""


def explain(spec: TrialSpec, architecture: Architecture) -> ExplainedEstimate:
    """Return the estimate of `spec` with its reasons.

    Raises:
        UsageError: As in `estimate`.
    """
    found = estimate(spec, architecture)
    instants = phase_instants(spec, architecture).values()
    phases = tuple(explained_phase(instant) for instant in instants)
    own = find_gpu(spec.gpu)
    cards = {**KNOWN_GPUS, **({own.name: own} if own is not None else {})}
    verdicts = all_cards(spec, architecture, cards.values())
    return ExplainedEstimate(spec=spec, estimate=found, phases=phases, cards=verdicts)


def explained_phase(instant: Instant) -> ExplainedPhase:
    """Return the phase of which `instant` is the largest, with a short form per category."""
    words = instant.words()
    shares = tuple(
        ExplainedShare(category=category, size_bytes=int(instant.sizes[category]), short_form=words[category])
        for category in Category
        if category in words
    )
    return ExplainedPhase(
        phase=instant.phase, instant=instant.name, peak_allocated_bytes=int(instant.total_bytes), shares=shares
    )
