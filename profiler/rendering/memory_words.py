"""Words for models, sizes of memory, their errors and verdicts, which are shown before pandas is imported."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile

from profiler.analytical.explanation.explained import CardVerdict, Fit
from profiler.analytical.formulas.sizes.rounding import (
    FRAGMENTS_PERCENT,
    REPLAYED_LESS_PERCENT,
)
from profiler.analytical.replayed.trial import has_replay
from profiler.domain.cards.capabilities import COMPARED, Compared, Within
from profiler.domain.memory import MIB, Category, as_gib, gib_text
from profiler.domain.trials.kernels import Bounds
from profiler.domain.trials.trial import DistributedType, TrialSpec
from profiler.domain.verl import VLLM

RESERVED_NOTE = "Reserved: by a model of segments left behind, within 4 % of the simulation in half of the trials."
SEVERAL_NOTE = (
    "Reserved: by a model of segments left behind; of several GPUs 5 % off an emulation in half of the trials, and up "
    "to 39 % too low."
)
REPLAYED_NOTE = "Reserved: by a replay of the trial's requests, within 2 % of the simulation in half of the trials."
REPLAYED_OF_SEVERAL_NOTE = (
    "Reserved: by a replay of the trial's requests, within 1 % of an emulated one of several GPUs in half of the "
    "trials."
)
FRAGMENTS_NOTE = (
    f"Fragments: what a full card cannot return, at most {FRAGMENTS_PERCENT} % of the tensors in 95 % of the trials."
)

CATEGORY_TITLES = {
    Category.WEIGHTS: "weights",
    Category.REFERENCE: "reference model",
    Category.REWARD_MODEL: "reward models",
    Category.CRITIC: "critic",
    Category.ADAPTERS: "adapters",
    Category.GRADIENTS: "gradients",
    Category.OPTIMIZER_STATE: "optimizer state",
    Category.ACTIVATIONS: "activations",
    Category.LOGITS: "logits",
    Category.KV_CACHE: "KV cache",
    Category.INPUTS: "inputs",
    Category.ENGINE: VLLM.title,
    Category.COMMUNICATION: "communication",
    Category.WORKSPACE: "workspace",
    Category.OTHER: "other",
}


_MODEL_CHARACTERS = 24


def short_model(model: str) -> str:
    """Return a model's name for a narrow column: the last part of a path or hub id, truncated if it is long."""
    name = model.rstrip("/").rsplit("/", maxsplit=1)[-1]
    return name if len(name) <= _MODEL_CHARACTERS else name[: _MODEL_CHARACTERS - 1] + "…"


def reserved_note(spec: TrialSpec, *, is_replayed: bool = True) -> str:
    """Return how reserved memory of one trial is estimated, if what has a replay is replayed."""
    several = spec.distributed_type is not DistributedType.NO
    if is_replayed and has_replay(spec):
        return REPLAYED_OF_SEVERAL_NOTE if several else REPLAYED_NOTE
    return SEVERAL_NOTE if several else RESERVED_NOTE


def fragments_note(cards: Iterable[CardVerdict]) -> str:
    """Return how what a full card cannot return is estimated for these cards, and how wrong that has been."""
    cards = tuple(cards)
    more = {card.needed.more_percent for card in cards}
    less = max((card.needed.less_percent for card in cards), default=REPLAYED_LESS_PERCENT)
    percents = " or ".join(map(str, sorted(each for each in more if each is not None)))
    if not percents:
        return FRAGMENTS_NOTE
    where = ""
    if None in more:
        where = f" where they may decide, else at most {FRAGMENTS_PERCENT} % of the tensors in 95 % of the trials"
    return (
        f"Fragments: what a full card cannot return, by a replay of the trial's requests{where}; a replay is at most "
        f"{percents} % too low, and at most {less} % too high, in 95 % of the trials each."
    )


def gib_number(size_bytes: int) -> str:
    """Return GiB without the unit: one decimal, or two significant digits below 0.1 GiB."""
    value = as_gib(size_bytes)
    return f"{value:.1f}" if value >= 0.1 or size_bytes == 0 else f"{value:.2g}"


def percent(ratio: float) -> str:
    """Return 0.031 as ``"3.1 %"``."""
    return f"{100 * ratio:.1f} %"


def mib_text(size_bytes: float) -> str:
    """Return ``"2.1 MiB"``: two significant digits, or whole MiB from 100 on."""
    value = size_bytes / MIB
    return f"{value:,.0f} MiB" if abs(value) >= 99.5 else f"{value:.2g} MiB"


def growth_text(points: Sequence[tuple[int, int]], limit_bytes: int | None) -> str | None:
    """Return how measured memory grows, and when the card is full; None for fewer than four steps.

    Args:
        points: Steps, from 1 on, and the memory of each.
        limit_bytes: What the process can have on the card; None if that is unknown.
    """
    # Imported here: an estimate needs no trends.
    from profiler.analysis.forecast.outlook import full_at
    from profiler.analysis.forecast.training_log import trend

    line, sizes = trend(points), [size for _, size in points]
    if line is None:
        return None
    text = (
        f"Measured memory has {gib_text(min(sizes))} to {gib_text(max(sizes))}, "
        f"{mib_text(line.slope)} per step ({mib_text(line.low)} to {mib_text(line.high)}, 95 %)."
    )
    full = full_at(line, limit_bytes) if limit_bytes is not None else None
    if full is None:
        return text
    step, early, late = full
    ends = f"{early:,.0f}" if early is not None else "?", f"{late:,.0f}" if late is not None else "never"
    return f"{text} At this rate of growth the card is full at step {step:,.0f} ({ends[0]} to {ends[1]})."


def compared_text(method: Callable[[Compared], Within]) -> str:
    """Return how far a method was from the real cards that were met, as one sentence."""
    within = method(COMPARED)
    cards = " and ".join(f"{count} {kind}" for kind, count in COMPARED.cards.items())
    return (
        f"On {cards}, 95 % of {within.trials} trials "
        f"were within {_at_most(within.allocated_p95_ratio)} of allocated and {_at_most(within.reserved_p95_ratio)} of "
        "reserved memory."
    )


def _at_most(ratio: float) -> str:
    """Return a bound in percent, rounded up: rounded to the nearest, 0.03 % would be 0.0 %."""
    return percent(math.ceil(ratio * 1000) / 1000)


def cards_in_one_line(cards: Sequence[CardVerdict]) -> str:
    """Return from which size of card on the trial fits, and what of the others.

    By hand, of cards of 16, 24, 24 and 48 GB where the last two fit and the smallest is too small:
    ``"Fits from 48 GB on, and on b-24gb; tight on a-24gb; does not fit up to 16 GB."``
    """
    known = [card for card in cards if card.gpu.size_gb is not None]
    if known and all(card.fit is Fit.UNDECIDED and not card.has_bounds for card in known if card.starts):
        return "Not decided on any card."
    sizes = sorted({card.gpu.size_gb or 0 for card in known if card.fit in _BY_MEMORY})
    fitting = list(takewhile(lambda size: _is_uniform(known, size, Fit.FITS), sizes[::-1]))
    too_small = list(takewhile(lambda size: _is_uniform(known, size, Fit.TOO_LARGE), sizes))
    whole = {Fit.FITS: [f"from {fitting[-1]} GB on"] if fitting else []}
    whole[Fit.TOO_LARGE] = [f"up to {too_small[-1]} GB"] if too_small else []
    parts = []
    for fit in Fit:
        counted = (*fitting, *too_small) if fit in _BY_MEMORY else ()
        names = [card.gpu.name for card in known if card.fit is fit and card.gpu.size_gb not in counted]
        where = [*whole.get(fit, ()), *([f"on {', '.join(names)}"] if names else ())]
        if where:
            parts.append(f"{fit.value} {', and '.join(where)}")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


_BY_MEMORY = (Fit.FITS, Fit.TIGHT, Fit.UNDECIDED, Fit.TOO_LARGE)
"""Verdicts that depend on the size of the card."""


def _is_uniform(cards: Sequence[CardVerdict], size_gb: int, fit: Fit) -> bool:
    """Return whether all cards of a size have a verdict, apart from those that could not run the trial at any size."""
    return all(card.fit is fit for card in cards if card.gpu.size_gb == size_gb and card.fit in _BY_MEMORY)


def cards_by_verdict(cards: Sequence[CardVerdict]) -> list[str]:
    """Return one line per verdict, with the cards that have it."""
    lines = []
    for fit in Fit:
        names = [card.gpu.name for card in cards if card.fit is fit]
        if names:
            lines.append(f"{fit.value}: {', '.join(names)}")
    return lines


def bounds_text(bounds: Bounds | None) -> str:
    """Return what the bounds of a job are made of; empty for an estimate."""
    if bounds is None:
        return ""
    program, least, most = bounds.kernels.program, gib_text(bounds.least_bytes), gib_text(bounds.most_bytes)
    whole = "" if bounds.kernels.counts_everything else " The upper one leaves out what is not counted."
    return (
        f"{program} has kernels without a formula, so its peak of allocated memory has bounds only: at least {least}, "
        "which are weights, adapters, gradients and optimizer states, and at most "
        f"{most}, which are those of trl's own trainer with the settings of {program} and what it adds.{whole}"
    )
