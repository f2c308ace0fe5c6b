"""The verdict for every card, as a table of 80 columns and as JSON; with prices the cheapest that fits comes first."""

from collections.abc import Mapping, Sequence

from profiler.analytical.explanation.cards import CardVerdict, Fit
from profiler.config.prices import Price
from profiler.config.trials.identity import spec_to_mapping
from profiler.domain.memory import Origin
from profiler.domain.trials.trial import TrialSpec
from profiler.domain.units import gib_text
from profiler.rendering.document import Align, Block, Cell, Column, Document, Table, Text, Wrap
from profiler.rendering.estimate.table import CONTEXT_NOTE, FRAGMENTS_NOTE, method_text
from profiler.rendering.layouts.json_text import json_text
from profiler.rendering.layouts.plain_text import plain_text

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
        price = _price_text(prices.get(card.gpu.name)) if prices is not None else ""
        name = Cell(text=card.gpu.name, is_part=True)
        rows.append((name, gib_text(card.gpu.memory_bytes), _verdict(card), price))
    blocks: list[Block] = [
        *map(Text, notes),
        Text(f"{spec.model}, {method_text(spec)}. Estimated, for each card:"),
        Table(_COLUMNS, rows, has_titles=False),
        Text(" ".join([*_sources(prices), FRAGMENTS_NOTE, CONTEXT_NOTE])),
    ]
    return plain_text(Document(title=spec.model, blocks=blocks))


def card_list_json(
    spec: TrialSpec, cards: Sequence[CardVerdict], prices: Mapping[str, Price] | None, notes: Sequence[str]
) -> str:
    """Return the same as JSON; sizes are integers of bytes."""
    found = [
        {
            "gpu": card.gpu.name,
            "fit": card.fit.value,
            "memory_bytes": card.gpu.memory_bytes,
            "least_bytes": card.least_bytes,
            "needed_bytes": card.needed_bytes,
            **_price_object((prices or {}).get(card.gpu.name)),
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
        case Fit.TOO_LARGE:
            return f"does not fit, {gib_text(card.least_bytes - card.gpu.memory_bytes)} missing"
        case Fit.NO_ENGINE:
            return card.fit.value
        case Fit.NO_KERNEL:
            return f"{card.fit.value}: {card.missing.name}" if card.missing else card.fit.value


def _price_text(price: Price | None) -> str:
    return f"{price.per_hour:.2f} {price.currency}/h".rstrip() if price is not None else "no price"


def _price_object(price: Price | None) -> dict[str, object]:
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
