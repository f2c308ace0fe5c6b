"""A row of the benchmark: a job as data, its peaks, how each was read, where it comes from, and what is missing.

Keys of a job are those of a trial, spelled as trl, transformers and peft spell them. A row is one line of JSON.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from profiler.storage.files.typed_json import JSON, JsonMismatchError, from_json, to_json

Choice = TypeVar("Choice", bound=StrEnum)

VERSION = 1
"""Of the schema. Raise it when a field is added, renamed or changes its meaning."""


class Origin(StrEnum):
    """Where the peaks of a row come from."""

    OTHERS = "measured by others"
    OURS = "measured here"
    EMULATED = "emulated"


class Metric(StrEnum):
    """What is counted."""

    ALLOCATED = "allocated"
    """Tensors."""
    RESERVED = "reserved"
    """The framework's cache, which holds the tensors."""
    DEVICE = "device"
    """All memory of the process on the card, with its context."""


class ReadBy(StrEnum):
    """What reported a peak."""

    TORCH_COUNTER = "torch counter"
    """`torch.cuda.max_memory_allocated` or `max_memory_reserved`: every request is seen."""
    TRAINER_LOG = "trainer log"
    """Changes of torch's counters, as transformers' trainer logs them by stage, added up."""
    NVML = "nvml"
    """`nvidia-smi` or NVML, sampled."""
    COUNTER_AND_CONTEXT = "torch counter and context"
    """torch's counter of reserved memory, and the memory outside it, read once."""
    UNKNOWN = "not stated"


class End(StrEnum):
    """How a job ended."""

    OK = "ok"
    OOM = "oom"


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The largest value of one metric."""

    metric: Metric
    size_bytes: int
    unit_bytes: int
    """Step in which the source prints it; 1 where it prints bytes."""
    read_by: ReadBy


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a row was found."""

    url: str
    commit: str
    """Revision of the file, or the date on which the page was read."""
    licence: str


@dataclass(frozen=True, kw_only=True)
class Card:
    """The GPU that ran the job."""

    name: str
    memory_bytes: int
    spills_to_host: bool
    """Whether its driver lets memory spill to the host, so that peaks above the card are real."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One job that ran."""

    row_id: str
    origin: Origin
    trainer: str
    """Program that ran the steps: `trl SFTTrainer`, `loop over a transformers model`."""
    versions: Mapping[str, str]
    card: Card
    job: Mapping[str, object]
    """Keys of a trial. Keys that are not named have their default."""
    assumed: Sequence[str]
    """Keys of `job` that the source does not state, and that are needed to run it."""
    beyond: Sequence[str]
    """What the job has and no key can say. Who predicts it needs to know of it."""
    differs: Sequence[str]
    """In what the job that the keys describe is not the one that ran."""
    missing: Sequence[str]
    """What the source does not state."""
    end: End
    peaks: Sequence[Peak]
    source: Source

    def peak(self, metric: Metric) -> int | None:
        """Return the peak of a metric in bytes; None if it was not read."""
        return next((peak.size_bytes for peak in self.peaks if peak.metric is metric), None)

    @property
    def kind(self) -> str:
        """Kind of job, by which tables are made: `SFT, LoRA`; of several GPUs: `GRPO, several GPUs`."""
        recipe = str(self.job.get("recipe", "grpo")).upper()
        if self.job.get("num_processes", 1) != 1:
            return f"{recipe}, several GPUs"
        tuning = {"full": "full", "lora": "LoRA", "qlora": "QLoRA"}[str(self.job["tuning"])]
        return f"{recipe}, {'other methods' if self.beyond else tuning}"


_LISTS = ("assumed", "beyond", "differs", "missing")
_FIELDS = (
    *("schema_version", "row_id", "origin", "trainer", "versions", "card", "job", "assumed", "beyond", "differs"),
    *("missing", "end", "peaks", "source"),
)


def row_line(row: Row) -> str:
    """Return a row as one line of JSON, without its end."""
    plain = {
        "schema_version": VERSION,
        "row_id": row.row_id,
        "origin": row.origin.value,
        "trainer": row.trainer,
        "versions": dict(row.versions),
        "card": to_json(row.card),
        "job": dict(row.job),
        **{name: list(getattr(row, name)) for name in _LISTS},
        "end": row.end.value,
        "peaks": [to_json(peak) for peak in row.peaks],
        "source": to_json(row.source),
    }
    return json.dumps({name: plain[name] for name in _FIELDS}, ensure_ascii=False)


def rows_text(rows: Iterable[Row]) -> str:
    """Return rows as the text of a file, by their names."""
    return "".join(f"{row_line(row)}\n" for row in sorted(rows, key=lambda row: row.row_id))


def read_row(line: str) -> Row:
    """Read the line that `row_line` wrote.

    Raises:
        JsonMismatchError: A field is missing, unknown or of another kind, or the version is another one.
    """
    found = json.loads(line)
    if not isinstance(found, dict) or set(found) != set(_FIELDS):
        different = sorted(set(found) ^ set(_FIELDS)) if isinstance(found, dict) else []
        raise JsonMismatchError(
            f"must have the fields {', '.join(_FIELDS)}; missing or unknown: {', '.join(different)}"
        )
    if found["schema_version"] != VERSION:
        raise JsonMismatchError(f"is {found['schema_version']!r}, must be {VERSION}", ("schema_version",))
    assumed, beyond, differs, missing = (_texts(found[name], name) for name in _LISTS)
    return Row(
        row_id=_text(found["row_id"], "row_id"),
        trainer=_text(found["trainer"], "trainer"),
        origin=_choice(Origin, found["origin"], "origin"),
        versions={str(name): _text(found["versions"][name], "versions") for name in _mapping(found, "versions")},
        card=from_json(Card, found["card"]),
        job=_mapping(found, "job"),
        assumed=assumed,
        beyond=beyond,
        differs=differs,
        missing=missing,
        end=_choice(End, found["end"], "end"),
        peaks=tuple(from_json(Peak, peak) for peak in found["peaks"]),
        source=from_json(Source, found["source"]),
    )


def _text(value: JSON, field: str) -> str:
    if not isinstance(value, str):
        raise JsonMismatchError(f"is {value!r}, must be text", (field,))
    return value


def _texts(value: JSON, field: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise JsonMismatchError(f"is {value!r}, must be a list", (field,))
    return tuple(_text(part, field) for part in value)


def _mapping(found: Mapping[str, JSON], field: str) -> Mapping[str, JSON]:
    value = found[field]
    if not isinstance(value, dict):
        raise JsonMismatchError(f"is {value!r}, must be an object", (field,))
    return value


def _choice(kind: type[Choice], value: JSON, field: str) -> Choice:
    try:
        return kind(str(value))
    except ValueError:
        allowed = ", ".join(kind)
        raise JsonMismatchError(f"is {value!r}, must be one of {allowed}", (field,)) from None
