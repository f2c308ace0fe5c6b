"""One trial as a cell of a comparison: its keys, its place in the order, its result and its estimates."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TypeAlias

import pandas as pd

from profiler.analysis.compared.published import Method, PublishedFigure, published_for
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import Origin, Phase
from profiler.domain.models.builtin_models import find_builtin
from profiler.domain.runs.outcome import VERSIONED, Status
from profiler.domain.trials.keys import Group, Kind
from profiler.domain.trials.labels import naming
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.trial import PLACE_KEYS, SHOWN_KEYS, TRIAL_KEYS, WORKLOAD_KEYS, Backend, Tuning, key_named

Number: TypeAlias = int | float
KeyValue: TypeAlias = str | Number | bool | tuple[str, ...] | None


_ROWS_AT_ONCE = 2_000


def is_numeric(key: str) -> bool:
    """Return whether the values of a key are amounts, so that memory can be drawn along it; a seed is none."""
    declared = key_named(key)
    return declared.is_numeric and declared.group is not Group.DATA


_PLACES = {key.name: place for place, key in enumerate(TRIAL_KEYS)}


class KeyValues(Mapping[str, KeyValue]):
    """The value of every key of one trial, without a dictionary of its own: a sweep can have 100,000 trials."""

    __slots__ = ("_values",)

    def __init__(self, values: tuple[KeyValue, ...]) -> None:
        """Take the values, in the order of `TRIAL_KEYS`."""
        self._values = values

    def __getitem__(self, key: str) -> KeyValue:
        return self._values[_PLACES[key]]

    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    def __len__(self) -> int:
        return len(_PLACES)


def trial_keys(row: Mapping[str, object]) -> KeyValues:
    """Return the value of each key of one row of the `runs` table; None for a column that is missing."""
    return KeyValues(tuple(_value(key.name, row.get(key.name)) for key in TRIAL_KEYS))


def records_of(frame: pd.DataFrame) -> list[dict[str, object]]:
    """Return the rows of a frame by column, as `to_dict("records")` does in several times the time."""
    return list(each_record(frame))


def each_record(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    """Yield the rows of a frame by column; only some of them are in memory at a time."""
    names = [str(name) for name in frame.columns]
    for start in range(0, len(frame), _ROWS_AT_ONCE):
        some = frame.iloc[start : start + _ROWS_AT_ONCE]
        columns = [some[name].tolist() for name in frame.columns]
        for values in zip(*columns, strict=True):
            yield dict(zip(names, values, strict=True))


def is_null(value: object) -> bool:
    """Return whether a value of a frame is null: None, NaN or pandas' NA, depending on how the frame was read."""
    return value is None or value is pd.NA or value != value


def _value(name: str, stored: object) -> KeyValue:
    return None if is_null(stored) else _of_text(name, str(stored))


@cache
def _of_text(name: str, text: str) -> KeyValue:
    """Return the value that a text means; equal values are one object."""
    declared = key_named(name)
    if declared.kind is Kind.FLAG:
        return text == "True"
    if declared.kind is Kind.COUNT:
        # A frame read with NumPy's types has 12.0 for 12.
        return int(text.removesuffix(".0"))
    if declared.kind is Kind.NUMBER:
        return float(text)
    if declared.kind is Kind.NAMES:
        return tuple(text.split(","))
    return text if declared.choices is None else declared.choices(text)


def in_reading_order(runs: pd.DataFrame) -> pd.DataFrame:
    """Return `runs` sorted by specification: members of an enumeration in their own order, numbers by size."""
    keys = pd.DataFrame({name: _ranks(runs[name], key_named(name).choices) for name in SHOWN_KEYS}, index=runs.index)
    keys["model"] = runs["model"].astype(str)
    keys["trial_id"] = runs["trial_id"].astype(str)
    return runs.loc[keys.sort_values([*SHOWN_KEYS, "model", "trial_id"]).index]


def _ranks(values: pd.Series, choices: type[StrEnum] | None) -> list[int]:
    # Ranks instead of values: a column has values of several types, and null comes first in all of them.
    known = [None if is_null(value) else value for value in values.tolist()]
    if choices is not None:
        ordered = [str(member) for member in choices]
    else:
        ordered = sorted({value for value in known if value is not None})
    rank = {value: position for position, value in enumerate(ordered)}
    return [-1 if value is None else rank[value] for value in known]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where results come from. A table only has results of one setting."""

    origin: Origin | None
    """Measured, emulated or simulated; None on the CPU, where GPU memory is unknown."""
    card: str | None
    """The vendor's name of the card; None on the CPU, or if every trial ended before it was read."""
    memory_bytes: int | None
    """The card's memory as torch reports it, or the cap."""
    versions: tuple[tuple[str, str], ...]
    """(package, version) of the packages in `VERSIONED`."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One trial. None means "unknown"."""

    trial_id: str
    setting: Setting
    keys: Mapping[str, KeyValue]
    """The value of every key of the trial."""
    label: str
    """The trial's name in tables, without model and card."""
    model: str
    parameters: int | None
    status: Status
    peak_allocated_bytes: int | None
    """Of a trial that ran out of memory, the highest value before the failure."""
    peak_phase: Phase | None
    required_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    peak_device_bytes: int | None
    required_device_bytes: int | None
    """Memory of a card that the trial needs: the CUDA context, and the segments that torch's allocator cannot release.

    On a full card the allocator releases its cache; on a card of unlimited memory the cache can be far larger than
    what the trial needs.
    """
    estimated_bytes: int | None
    rule_bytes: int | None
    """The published blog's rule of thumb."""
    published: PublishedFigure | None
    message: str | None

    @property
    def configuration(self) -> tuple[KeyValue, ...]:
        """Equal for trials that run the same, wherever they run."""
        return tuple(self.keys[key] for key in WORKLOAD_KEYS)

    @property
    def result_bytes(self) -> int | None:
        """What an estimate is compared with: the peak, or what a trial that ran out of memory needs."""
        if self.status is Status.OK:
            return self.peak_allocated_bytes
        return self.required_allocated_bytes if self.status is Status.OOM else None

    @property
    def missing_bytes(self) -> int | None:
        """How much more than the card's memory a trial that ran out of memory needs; None if unknown or not more."""
        memory = self.setting.memory_bytes
        required = self.required_device_bytes or self.required_allocated_bytes
        if self.status is not Status.OOM or required is None or memory is None:
            return None
        missing = required - memory
        return missing if missing > 0 else None

    @property
    def share_of_card_ratio(self) -> float | None:
        """The result divided by the card's memory."""
        if self.result_bytes is None or not self.setting.memory_bytes:
            return None
        return self.result_bytes / self.setting.memory_bytes

    @property
    def estimate_error_ratio(self) -> float | None:
        """(estimate - result) / result: 0.1 is 10 % too high."""
        return _error_ratio(self.estimated_bytes, self.result_bytes)

    @property
    def rule_error_ratio(self) -> float | None:
        """(rule of thumb - result) / result."""
        return _error_ratio(self.rule_bytes, self.result_bytes)


def cells(runs: pd.DataFrame, published: Iterable[PublishedFigure] = ()) -> tuple[Cell, ...]:
    """Return the rows of the `runs` table as cells, in the order of the frame, with labels that tell them apart."""
    figures = tuple(published)
    cards = _cards(_Row(values) for values in each_record(_columns_of_cards(runs)))
    keys = [trial_keys(values) for values in each_record(runs)]
    settings: dict[Setting, Setting] = {}
    return tuple(
        _cell(_Row(values, known), label, cards, figures, settings)
        for values, known, label in zip(each_record(runs), keys, _labels(keys), strict=True)
    )


def _columns_of_cards(runs: pd.DataFrame) -> pd.DataFrame:
    return runs[["backend", "gpu", "gpu_name", "gpu_memory_bytes"]]


def _error_ratio(estimated: int | None, result: int | None) -> float | None:
    if estimated is None or not result:
        return None
    return (estimated - result) / result


class _Row:
    """One row of the `runs` table, with every kind of null as None."""

    def __init__(self, values: Mapping[str, object], keys: KeyValues | None = None) -> None:
        self._values = values
        self._keys = keys

    @property
    def keys(self) -> KeyValues:
        assert self._keys is not None
        return self._keys

    def text(self, name: str) -> str | None:
        value = self._values[name]
        return None if is_null(value) else str(value)

    def known_text(self, name: str) -> str:
        return str(self._values[name])

    def count(self, name: str) -> int | None:
        text = self.text(name)
        # A frame read with NumPy's types has 12.0 for 12.
        return None if text is None else int(text.removesuffix(".0"))

    @property
    def backend(self) -> Backend:
        return Backend(self.known_text("backend"))


_Cards = Mapping[tuple[Backend, str | None], tuple[str | None, int | None]]


def _labels(trials: Sequence[KeyValues]) -> list[str]:
    named = naming(trials)
    return [named.label(trial, without=PLACE_KEYS) for trial in trials]


def _cards(rows: Iterable[_Row]) -> _Cards:
    """Map (backend, `gpu` key) to (card, memory), for trials that ended before they read the card."""
    found: dict[tuple[Backend, str | None], tuple[str | None, int | None]] = {}
    for row in rows:
        card, memory = row.text("gpu_name"), row.count("gpu_memory_bytes")
        if card is not None and memory is not None:
            found.setdefault((row.backend, row.text("gpu")), (card, memory))
    return found


def _card(row: _Row, cards: _Cards) -> tuple[str | None, int | None]:
    if row.backend is Backend.CPU:
        return None, None
    name, memory = row.text("gpu_name"), row.count("gpu_memory_bytes")
    if name is None or memory is None:
        asked = KNOWN_GPUS.get(row.text("gpu") or "") if row.backend.names_its_card else None
        planned = (asked.title, asked.memory_bytes) if asked else (None, None)
        name, memory = cards.get((row.backend, row.text("gpu")), planned)
    known = KNOWN_GPUS.get(name or "")
    return (known.title if known else name), memory


def _setting(row: _Row, cards: _Cards) -> Setting:
    card, memory = _card(row, cards)
    versions = ((package, row.text(f"{package}_version")) for package in VERSIONED)
    return Setting(
        origin=row.backend.origin,
        card=card,
        memory_bytes=memory,
        versions=tuple((package, version) for package, version in versions if version is not None),
    )


def _cell(
    row: _Row,
    label: str,
    cards: _Cards,
    figures: tuple[PublishedFigure, ...],
    settings: dict[Setting, Setting],
) -> Cell:
    setting = _setting(row, cards)
    model = row.known_text("model")
    builtin = find_builtin(model)
    phase = row.text("peak_phase")
    return Cell(
        trial_id=row.known_text("trial_id"),
        # Most trials have one of a few settings.
        setting=settings.setdefault(setting, setting),
        keys=row.keys,
        label=label,
        model=model,
        parameters=row.count("parameters") or (builtin.parameters if builtin else None),
        status=Status(row.known_text("status")),
        peak_allocated_bytes=row.count("peak_allocated_bytes"),
        peak_phase=Phase(phase) if phase else None,
        required_allocated_bytes=row.count("required_allocated_bytes"),
        peak_reserved_bytes=row.count("peak_reserved_bytes"),
        peak_device_bytes=row.count("peak_device_bytes"),
        required_device_bytes=_sum(row.count("required_unreleasable_bytes"), row.count("context_bytes")),
        estimated_bytes=row.count("estimated_peak_allocated_bytes"),
        rule_bytes=row.count("estimated_peak_rule_bytes"),
        published=published_for(_method(row), figures),
        message=row.text("message"),
    )


def _sum(*parts: int | None) -> int | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _method(row: _Row) -> Method:
    return Method(
        grid=row.known_text("grid"),
        model=row.known_text("model"),
        tuning=Tuning(row.known_text("tuning")),
        optim=Optimizer(row.known_text("optim")),
        gradient_checkpointing=row.keys["gradient_checkpointing"] is True,
    )
