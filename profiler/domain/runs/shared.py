"""A row of the benchmark: a job as data, its peaks, how each was read, where it comes from, and what is missing.

Keys of a job are those of a trial, spelled as trl, transformers and peft spell them. A row is one line of JSON.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from profiler.domain.errors import Fault

VERSION = 1
"""Of the schema. Raise it when a field is added, renamed or changes its meaning."""


class RowOrigin(StrEnum):
    """Where the peaks of a row come from."""

    OTHERS = "measured by others"
    OURS = "measured here"
    SENT = "measured and sent"
    """By `python -m profiler.share`."""
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


class RowEnd(StrEnum):
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
class RowSource:
    """Where a row was found."""

    url: str
    commit: str
    """Revision of the file, or the date on which the page was read; of a sent row, who measured."""
    licence: str


@dataclass(frozen=True, kw_only=True)
class RowCard:
    """The GPU that ran the job."""

    name: str
    memory_bytes: int
    spills_to_host: bool
    """Whether its driver lets memory spill to the host, so that peaks above the card are real."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One job that ran."""

    schema_version: int = VERSION
    row_id: str
    origin: RowOrigin
    trainer: str
    """Program that ran the steps: `trl SFTTrainer`, `loop over a transformers model`."""
    versions: Mapping[str, str]
    card: RowCard
    job: Mapping[str, object]
    """Keys of a trial. Keys that are not named have their default."""
    assumed: tuple[str, ...]
    """Keys of `job` that the source does not state, and that are needed to run it."""
    beyond: tuple[str, ...]
    """What the job has and no key can say. Who predicts it needs to know of it."""
    differs: tuple[str, ...]
    """In what the job that the keys describe is not the one that ran."""
    missing: tuple[str, ...]
    """What the source does not state."""
    end: RowEnd
    peaks: tuple[Peak, ...]
    source: RowSource

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


_AT_LEAST = (
    (Metric.ALLOCATED, Metric.RESERVED),
    (Metric.RESERVED, Metric.DEVICE),
    (Metric.ALLOCATED, Metric.DEVICE),
)
"""Pairs of which the second is at least the first."""


def impossible(row: Row, *, least_bytes: int) -> Iterator[Fault]:
    """Yield what breaks physics in the peaks of a row.

    Args:
        row: The row.
        least_bytes: What a job needs at least of one card: the weights that stay there.
    """
    peaks = {peak.metric: peak for peak in row.peaks}
    for smaller, larger in ((peaks[small], peaks[large]) for small, large in _AT_LEAST if {small, large} <= set(peaks)):
        if larger.size_bytes + larger.unit_bytes < smaller.size_bytes - smaller.unit_bytes:
            found = f"{larger.metric.value} {larger.size_bytes}"
            yield Fault(key=row.row_id, found=found, problem=f"is below {smaller.metric.value}, {smaller.size_bytes}")
    for peak in row.peaks:
        found = f"{peak.metric.value} {peak.size_bytes}"
        if peak.size_bytes - peak.unit_bytes > row.card.memory_bytes and not row.card.spills_to_host:
            yield Fault(key=row.row_id, found=found, problem=f"is above the card's {row.card.memory_bytes}")
        if peak.size_bytes + peak.unit_bytes < least_bytes and row.end is RowEnd.OK:
            yield Fault(key=row.row_id, found=found, problem=f"is below the weights, {least_bytes}")
    if row.end is RowEnd.OK and not row.peaks:
        yield Fault(key=row.row_id, found="no peak", problem="must have one")
