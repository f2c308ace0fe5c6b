"""Verdicts for every card, and the estimates of a grid, as tables of 80 columns and as JSON."""

from collections import Counter
from collections.abc import Mapping, Sequence

from profiler.analytical.explanation.explained import CardVerdict, EstimatedGrid, EstimatedPoint, Fit
from profiler.config.options.reading import show
from profiler.config.prices import Price
from profiler.config.trials.identity import spec_to_mapping
from profiler.domain.cards.card import outside_torch_bytes
from profiler.domain.cards.gpu import Gpu
from profiler.domain.cards.gpu_names import find_gpu
from profiler.domain.memory import Origin, gib_text
from profiler.domain.trials.trial import TrialSpec
from profiler.rendering.document import Align, Block, Cell, Column, Document, Section, Table, Text, Wrap, paragraphs
from profiler.rendering.estimate.table import CONTEXT_NOTE, method_text
from profiler.rendering.layouts.plain_text import json_text, plain_text
from profiler.rendering.memory_words import fragments_note, gib_number, reserved_note

_COLUMNS = (
    Column(title="GPU", align=Align.LEFT, width=24),
    Column(title="memory", width=10),
    Column(title="verdict", align=Align.LEFT, width=34, wrap=Wrap.NEVER),
    Column(title="price", align=Align.LEFT),
)


def card_list(
    spec: TrialSpec, cards: Sequence[CardVerdict], prices: Mapping[str, Price] | None, notes: Sequence[str]
) -> str:
    """Return one line per card: its memory, the verdict with what is left or missing, and its price."""
    rows = []
    for card in in_order(cards, prices):
        price = price_text(prices.get(card.gpu.name)) if prices is not None else ""
        name = Cell(text=card.gpu.name, is_part=True)
        rows.append((name, gib_text(card.gpu.memory_bytes), _verdict(card), price))
    blocks: list[Block] = [
        *map(Text, notes),
        Text(f"{spec.model}, {method_text(spec)}. Estimated, for each card:"),
        Table(_COLUMNS, rows, has_titles=False),
        Text(" ".join([*_sources(prices), fragments_note(cards), CONTEXT_NOTE])),
    ]
    return plain_text(Document(title=spec.model, blocks=blocks))


def card_list_json(
    spec: TrialSpec, cards: Sequence[CardVerdict], prices: Mapping[str, Price] | None, notes: Sequence[str]
) -> str:
    """Return the same as JSON; sizes are integers of bytes."""
    found = [
        {
            "gpu": card.gpu.name,
            "fit": card.word,
            "memory_bytes": card.gpu.memory_bytes,
            "least_bytes": card.least_bytes,
            "needed_bytes": card.needed_bytes,
            **price_object((prices or {}).get(card.gpu.name)),
        }
        for card in in_order(cards, prices)
    ]
    content = {"origin": Origin.ESTIMATED.value, "notes": list(notes), "trial": spec_to_mapping(spec), "gpus": found}
    return json_text(content)


def in_order(cards: Sequence[CardVerdict], prices: Mapping[str, Price] | None) -> list[CardVerdict]:
    """Return the cards from small to large; with prices those that fit first, from cheap to expensive."""
    if prices is None:
        return list(cards)
    verdicts = list(Fit)

    def rank(card: CardVerdict) -> tuple[int, bool, float]:
        price = prices.get(card.gpu.name)
        return (verdicts.index(card.fit), price is None, price.per_hour if price is not None else 0.0)

    return sorted(cards, key=rank)


def _verdict(card: CardVerdict) -> str:
    match card.fit:
        case Fit.FITS:
            return f"fits, {gib_text(card.left_bytes)} left"
        case Fit.TIGHT:
            return f"tight, depending on {gib_text(-card.left_bytes)}"
        case Fit.UNDECIDED if not card.has_bounds:
            return card.word
        case Fit.UNDECIDED:
            return f"{card.word}, up to {gib_text(-card.left_bytes)} missing"
        case Fit.TOO_LARGE:
            return f"does not fit, {gib_text(card.least_bytes - card.gpu.memory_bytes)} missing"
        case Fit.NO_ENGINE:
            return card.word
        case Fit.NO_KERNEL:
            return f"{card.word}: {card.missing.name}" if card.missing else card.word


def price_text(price: Price | None) -> str:
    """Return ``"1.00 USD/h"``, or that there is no price."""
    return f"{price.per_hour:.2f} {price.currency}/h".rstrip() if price is not None else "no price"


def sourced_text(name: str, price: Price) -> str:
    """Return the price of a card with its source and date, and that it changes."""
    where = ", ".join(part for part in (price.source, price.date) if part)
    return f"{name}, {price_text(price)}{f' ({where})' if where else ''}. Prices change."


def price_object(price: Price | None) -> dict[str, object]:
    """Return the price with currency, source and date as members of an object; none without a price."""
    if price is None:
        return {}
    return {
        "price_per_hour": price.per_hour,
        "currency": price.currency,
        "price_source": price.source,
        "price_date": price.date,
    }


def _sources(prices: Mapping[str, Price] | None) -> list[str]:
    said = dict.fromkeys(
        ", ".join(part for part in (price.source, price.date) if part) for price in (prices or {}).values()
    )
    named = [each for each in said if each]
    return [f"Prices, per card: {'; '.join(named)}."] if named else []


_TITLE = "Estimated peaks, GiB (2^30 bytes)."
_NUMBERS = ("allocated", "reserved", "rule")
_TEXTS = ("peak in", "verdict")


def grid_table(grid: EstimatedGrid) -> str:
    """Return one row per trial: the keys that vary, its peaks, the phase of the peak, the verdict for its card."""
    numbers = [*_NUMBERS, *(key for key in grid.keys if _is_count(grid, key))]
    columns = [
        Column(title=title, align=Align.RIGHT if title in numbers else Align.LEFT)
        for title in (*grid.keys, *_NUMBERS, *_TEXTS)
    ]
    note = reserved_note(grid.points[0].spec, is_replayed=grid.is_replayed)
    blocks: list[Block] = [
        paragraphs(_TITLE),
        Section("", [Table(columns, [_cells(point, grid.keys) for point in grid.points])]),
        paragraphs(f"{_summary(grid)} {note} {CONTEXT_NOTE}", _above_the_card(grid)),
    ]
    return plain_text(Document(title=_TITLE, blocks=blocks))


def _above_the_card(grid: EstimatedGrid) -> str:
    """Return what reserved memory of more than a card means; empty if no trial has it."""
    cards = [(point, find_gpu(point.spec.gpu)) for point in grid.points]
    is_above = any(card is not None and _is_above(point, card) for point, card in cards)
    return "Reserved above the card's memory: a full card gives its cache back before it runs out." if is_above else ""


def _is_above(point: EstimatedPoint, card: Gpu) -> bool:
    outside = outside_torch_bytes(card.compute_capability, point.spec.num_processes)
    return point.estimate.reserved_bytes + outside > card.memory_bytes


def grid_json(grid: EstimatedGrid, notes: Sequence[str]) -> str:
    """Return one object: notes, the keys that all trials share, and per trial its other keys and its peaks in bytes."""
    trials = [spec_to_mapping(point.spec) for point in grid.points]
    first = trials[0]
    common = {key: value for key, value in first.items() if all(trial[key] == value for trial in trials)}
    points = [
        {
            "trial": {key: value for key, value in trial.items() if key not in common},
            "peak_allocated_bytes": point.estimate.peak_allocated_bytes,
            "peak_reserved_bytes": point.estimate.reserved_bytes,
            "peak_rule_bytes": point.estimate.peak_rule_bytes,
            "peak_phase": point.estimate.peak_phase.value,
            "verdict": point.fit.value if point.fit else None,
        }
        for trial, point in zip(trials, grid.points, strict=True)
    ]
    return json_text({"origin": Origin.ESTIMATED.value, "notes": list(notes), "trial": common, "points": points})


def _cells(point: EstimatedPoint, keys: Sequence[str]) -> list[str]:
    return [
        *(show(getattr(point.spec, key)) for key in keys),
        gib_number(point.estimate.peak_allocated_bytes),
        gib_number(point.estimate.reserved_bytes),
        gib_number(point.estimate.peak_rule_bytes),
        point.estimate.peak_phase.value,
        point.fit.value if point.fit else "",
    ]


def _is_count(grid: EstimatedGrid, key: str) -> bool:
    return isinstance(getattr(grid.points[0].spec, key), int | float)


def _summary(grid: EstimatedGrid) -> str:
    """Return the number of trials per verdict, and the card if all have the same."""
    counts = Counter(point.fit for point in grid.points)
    verdicts = "".join(f"; {fit.value}: {counts[fit]}" for fit in Fit if counts[fit])
    cards = {point.spec.gpu for point in grid.points}
    card = f" on {next(iter(cards))}" if len(cards) == 1 and None not in cards else ""
    return f"{len(grid.points):,} trials{card}{verdicts}."
