"""The set: rows that others measured, which it holds, and the project's own kept results, which it refers to."""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from statistics import median

from maintenance.benchmark.rows.jobs import FOLDER, checked
from maintenance.benchmark.rows.sent import read_row
from maintenance.samples.sampling import SAMPLED, read_sampled
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.runs.outcome import Status, TrialRecord
from profiler.domain.runs.shared import Metric, Peak, ReadBy, Row, RowCard, RowEnd, RowOrigin, RowSource
from profiler.domain.trials.trial import Backend, TrialSpec
from profiler.share.rows import job_of, row_of_trial, trainer_of
from profiler.storage.sweep_tables.earlier import stored_runs
from profiler.storage.sweep_tables.tables import read_tables

ROWS, SENT = FOLDER / "rows.jsonl", FOLDER / "sent.jsonl"
CAMPAIGNS = ("h200", "h200_second", "h200_third", "h100", "h200_fourth")
"""Folders of kept results of a real card."""
REFERENCE = Path(__file__).parents[3] / "results" / "reference"

_LICENCE = "Apache-2.0"
OF_THE_SET: Mapping[str, str] = {"benchmark": "first_estimates.csv", "benchmark_last": "rows.csv"}
"""Samples that were drawn for the set, by name: the file with the estimates of code that had seen none of the trials.

The last third was judged once, so its rows have them.
"""
_COMPARED = ("several_gpus", "deepspeed", "deepspeed_blind", *OF_THE_SET)
"""Samples that are emulated, and compared with the closed form."""

_EMULATED_VERSIONS = {"torch": "2.13.0", "trl": "1.16.0", "transformers": "5.23.0", "peft": "0.21.2"}
_ESTIMATED = "estimated_peak_allocated_bytes"
_FRACTION = "per_process_memory_fraction:"

Sizes = Mapping[Metric, int]


@cache
def all_rows() -> tuple[Row, ...]:
    """Return every row of the set, checked.

    Raises:
        UsageError: A row is impossible.
    """
    return checked((*others_rows(), *sent_rows(), *_measured_here(), *_emulated(), *_emulated_and_compared()))


def others_rows() -> tuple[Row, ...]:
    """Return the rows that the set holds: measured by others."""
    return _rows_of(ROWS)


def sent_rows() -> tuple[Row, ...]:
    """Return the rows that the set holds: sent by users."""
    return _rows_of(SENT)


def _rows_of(path: Path) -> tuple[Row, ...]:
    return tuple(read_row(line) for line in path.read_text("utf-8").splitlines())


@cache
def kept_simulations() -> Mapping[str, Sizes]:
    """Return what the simulation said, by the name of the row, where the kept results have it."""
    measured: dict[str, Sizes] = {}
    for campaign in CAMPAIGNS:
        records = [each for each in _trials(campaign, Backend.SIMULATED) if each.outcome.status is Status.OK]
        simulated = {_whole(job_of(record.spec)): record.outcome.peaks for record in records}
        for row in _measured_in(campaign):
            peaks = simulated.get(_whole(row.job))
            if row.end is RowEnd.OK and peaks is not None and peaks.allocated_bytes and peaks.reserved_bytes:
                measured[row.row_id] = {
                    Metric.ALLOCATED: peaks.allocated_bytes,
                    Metric.RESERVED: peaks.reserved_bytes,
                }
    emulated = {_name("emulated", int(row["trial"])): _sizes(row, "simulated") for row in _whole_trials("simulated")}
    return {**measured, **emulated}


@cache
def first_estimates() -> Mapping[str, Mapping[str, int]]:
    """Return what the estimate said before it had seen a trial, by the name of the row, in bytes by metric.

    Of campaigns it is allocated memory, of the samples for the set allocated and reserved memory.
    """
    found: dict[str, Mapping[str, int]] = {}
    for campaign in CAMPAIGNS:
        tables = (read_tables(grid).runs for grid in sorted((REFERENCE / campaign / "tables").iterdir()))
        kept = {name: size for runs in tables for name, size in zip(runs.trial_id, runs[_ESTIMATED], strict=True)}
        for record in _trials(campaign, Backend.CUDA):
            name = _name_of_measured(campaign, row_of_trial(record))
            found[name] = {Metric.ALLOCATED.value: int(kept[record.trial_id])}
    for sample, file in OF_THE_SET.items():
        for row in _read_csv(REFERENCE / sample / file):
            if sizes := _sizes(row, "estimated"):
                name = _name(sample, int(row["trial"]))
                found[name] = {metric.value: size for metric, size in sizes.items()}
    return found


def rows_to_simulate() -> tuple[Row, ...]:
    """Return the rows of others, and the emulated ones of one GPU that have no kept simulation."""
    of_one = (row for row in _emulated_and_compared() if row.job["num_processes"] == 1)
    return (*others_rows(), *of_one)


def simulation_seconds() -> float:
    """Return the median time of a simulated trial of the measured ones' grids, in a worker that has started."""
    records = [record for campaign in CAMPAIGNS for record in _trials(campaign, Backend.SIMULATED)]
    return median(record.outcome.work.wall_s or 0.0 for record in records)


def _name(sample: str, number: int) -> str:
    return f"{sample}-{number:03d}"


def _measured_here() -> Iterator[Row]:
    for campaign in CAMPAIGNS:
        yield from _measured_in(campaign)


@cache
def _measured_in(campaign: str) -> tuple[Row, ...]:
    """Return the measured trials of a campaign, each once, as `python -m profiler.share` makes rows of them."""
    source = RowSource(url=f"results/reference/{campaign}", commit="of this repository", licence=_LICENCE)
    rows = (row_of_trial(record) for record in _trials(campaign, Backend.CUDA))
    named = {_name_of_measured(campaign, row): row for row in rows}
    return tuple(replace(row, row_id=name, origin=RowOrigin.OURS, source=source) for name, row in sorted(named.items()))


@cache
def _trials(campaign: str, backend: Backend) -> tuple[TrialRecord, ...]:
    stored = stored_runs(REFERENCE / campaign / "tables", before_table=lambda _: None)
    return tuple(record for record in stored.trials if record.spec.backend is backend)


def _name_of_measured(campaign: str, row: Row) -> str:
    """Return a name of a job, or of a job and the cap of its card."""
    cap = f" {row.card.memory_bytes}" if row.differs else ""
    job = {key: value for key, value in row.job.items() if (key, value) not in _SINCE_NAMED}
    return f"{campaign}-{sha256(f'{sorted(job.items())!r}{cap}'.encode()).hexdigest()[:10]}"


_NEWER_FLAGS = ("fp16", "ref_adapter", "fsdp_cpu_ram_efficient_loading")
_SINCE_NAMED = (("weight_decay", 0.0), *((key, False) for key in _NEWER_FLAGS))
"""Keys that are newer than the names of rows, with the value of all earlier ones."""


def _whole(job: Mapping[str, object]) -> str:
    """Return the text of a job on the whole card, also if the allocator had a part of it only: no peak differs."""
    settings = [each for each in str(job["alloc_conf"]).split(",") if not each.startswith(_FRACTION)]
    return repr(sorted({**job, "alloc_conf": ",".join(settings)}.items()))


def _emulated() -> Iterator[Row]:
    specs = read_sampled((REFERENCE / "emulated" / SAMPLED).read_text())
    for row in _whole_trials("emulated"):
        number = int(row["trial"])
        yield _emulated_row("emulated", number, specs[number], _sizes(row, "emulated"))


def _emulated_and_compared() -> Iterator[Row]:
    for sample in _COMPARED:
        specs = read_sampled((REFERENCE / sample / SAMPLED).read_text())
        for row in _read_csv(REFERENCE / sample / "rows.csv"):
            if row["emulated_allocated_bytes"]:
                yield _emulated_row(sample, int(row["trial"]), specs[int(row["trial"])], _sizes(row, "emulated"))


def _emulated_row(sample: str, number: int, spec: TrialSpec, sizes: Sizes) -> Row:
    """Return an emulated trial: its peaks are those that an unlimited card would show."""
    gpu = KNOWN_GPUS[str(spec.gpu)]
    return Row(
        row_id=_name(sample, number),
        origin=RowOrigin.EMULATED,
        trainer=trainer_of(spec.recipe),
        versions=_EMULATED_VERSIONS,
        card=RowCard(name=gpu.title, memory_bytes=max(gpu.memory_bytes, *sizes.values()), spills_to_host=False),
        job=job_of(spec),
        assumed=(),
        beyond=(),
        differs=(),
        missing=(),
        end=RowEnd.OK,
        peaks=tuple(
            Peak(metric=metric, size_bytes=size, unit_bytes=1, read_by=ReadBy.TORCH_COUNTER)
            for metric, size in sizes.items()
        ),
        source=RowSource(url=f"results/reference/{sample}", commit="of this repository", licence=_LICENCE),
    )


def _whole_trials(side: str) -> list[Mapping[str, str]]:
    """Return kept rows with a peak of the whole trial; of one that ran out of memory, on an unlimited card."""
    rows = _read_csv(REFERENCE / "emulated" / "rows.csv")
    wanted = {("ok", "all"), ("oom", "required")}
    return [row for row in rows if (row["emulated_status"], row["phase"]) in wanted and row[f"{side}_allocated_bytes"]]


def _sizes(row: Mapping[str, str], side: str) -> Sizes:
    """Return the peaks of a row; some samples keep allocated memory only."""
    sizes = {metric: row.get(f"{side}_{metric.value}_bytes") for metric in (Metric.ALLOCATED, Metric.RESERVED)}
    return {metric: int(float(size)) for metric, size in sizes.items() if size}


def _read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
