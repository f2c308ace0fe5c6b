"""Prices of cards per hour, from a CSV file that a user exported or wrote."""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from profiler.domain.cards.gpu_names import name_card
from profiler.domain.errors import Fault, UsageError, shortened

COLUMNS = ("gpu", "price_per_hour", "currency", "source", "date")
"""The columns of the file, in any order; others are ignored."""

_NEEDED = ("gpu", "price_per_hour")


@dataclass(frozen=True, kw_only=True)
class Price:
    """The price of one card for one hour."""

    per_hour: float
    currency: str
    source: str
    date: str


@dataclass(frozen=True, kw_only=True)
class Prices:
    """The lowest price of each card."""

    by_card: Mapping[str, Price]
    unknown: tuple[str, ...]
    """Names of cards that are not known here, as the file spells them."""


def read_prices(text: str, *, name: str) -> Prices:
    """Return the prices in a CSV text with the columns of `COLUMNS`; lines that begin with # are comments.

    Raises:
        UsageError: A column is missing, a price is not a number, or there are several currencies.
    """
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    try:
        rows = list(csv.DictReader(lines, strict=True))
    except csv.Error as error:
        raise UsageError([_fault(name, f"is not valid CSV ({error})")]) from error
    missing = [column for column in _NEEDED if not rows or column not in rows[0]]
    if missing:
        problem = f"has no column {' and no column '.join(missing)}; the columns are {', '.join(COLUMNS)}"
        raise UsageError([_fault(name, problem)])
    return _cheapest(rows, name)


def _cheapest(rows: Sequence[Mapping[str | None, str | None]], name: str) -> Prices:
    named = cache(name_card)
    found: dict[str, Price] = {}
    unknown: dict[str, None] = {}
    faults = []
    for row in rows:
        card, said = named(_cell(row, "gpu")), _cell(row, "price_per_hour")
        price = _price(row)
        if price is None:
            faults.append(_fault(name, f"has a price_per_hour of {said!r}, which must be a number above 0"))
        elif not card.name:
            unknown[shortened(_cell(row, "gpu"), 60)] = None
        elif card.name not in found or price.per_hour < found[card.name].per_hour:
            found[card.name] = price
    currencies = sorted({price.currency for price in found.values()})
    if len(currencies) > 1:
        faults.append(_fault(name, f"has prices in {' and in '.join(currencies)}, which cannot be compared"))
    if faults:
        raise UsageError(tuple(dict.fromkeys(faults)))
    return Prices(by_card=found, unknown=tuple(unknown))


def _price(row: Mapping[str | None, str | None]) -> Price | None:
    try:
        value = float(_cell(row, "price_per_hour"))
    except ValueError:
        return None
    if not (math.isfinite(value) and value > 0):
        return None
    currency, source, date = (_cell(row, column) for column in ("currency", "source", "date"))
    return Price(per_hour=value, currency=currency, source=source, date=date)


def _cell(row: Mapping[str | None, str | None], column: str) -> str:
    return (row.get(column) or "").strip()


def _fault(name: str, problem: str) -> Fault:
    return Fault(key="prices", found=name, problem=problem)
