"""The set: rows that others measured, which it holds, and the project's own kept results, which it refers to."""

import csv
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from maintenance.benchmark.rows.jobs import FOLDER, checked
from maintenance.benchmark.rows.schema import Card, End, Metric, Origin, Peak, ReadBy, Row, Source, read_row
from maintenance.samples.sampling import SAMPLED, read_sampled
from profiler.config.trials.identity import spec_from_mapping, spec_to_mapping
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.trials.trial import SPEC_KEYS, Backend, TrialSpec

ROWS = FOLDER / "rows.jsonl"
REFERENCE = Path(__file__).parents[3] / "results" / "reference"

_LICENCE = "Apache-2.0"
_OF_SEVERAL_GPUS = ("several_gpus", "deepspeed", "deepspeed_blind")
_H200 = "h200-141gb"
_EMULATED_VERSIONS = {"torch": "2.13.0", "trl": "1.16.0", "transformers": "5.23.0", "peft": "0.21.2"}
_NOT_OF_THE_JOB = frozenset({"backend", "weights", "dataset", "seed"})
"""Keys of a trial that no peak depends on."""

_WHOLE = frozenset({"lora_rank", "lora_alpha", "max_length", "zero_stage"})
"""Keys whose values are whole numbers and that can be null."""

Sizes = Mapping[Metric, int]


@cache
def all_rows() -> tuple[Row, ...]:
    """Return every row of the set, checked.

    Raises:
        UsageError: A row is impossible.
    """
    return checked((*others_rows(), *_measured_here(), *_emulated(), *_emulated_on_several_gpus()))


def others_rows() -> tuple[Row, ...]:
    """Return the rows that the set holds: measured by others."""
    return tuple(read_row(line) for line in ROWS.read_text("utf-8").splitlines())


@cache
def kept_simulations() -> Mapping[str, Sizes]:
    """Return what the simulation said, by the name of the row, where the kept results have it."""
    measured = {name: sizes for name, _, sizes in _trials_on_h200(Backend.SIMULATED)}
    emulated = {_name("emulated", int(row["trial"])): _sizes(row, "simulated") for row in _whole_trials("simulated")}
    return {**measured, **emulated}


def simulation_seconds() -> float:
    """Return the median time of a simulated trial of the measured ones' grids, in a worker that has started."""
    return median(float(run["wall_s"]) for _, run, _ in _trials_on_h200(Backend.SIMULATED))


def _name(sample: str, number: int) -> str:
    return f"{sample}-{number:03d}"


def _measured_here() -> Iterator[Row]:
    for name, run, sizes in _trials_on_h200(Backend.CUDA):
        spec = _spec(run)
        versions = {package: str(run[f"{package}_version"]) for package in ("torch", "trl", "transformers", "peft")}
        card = Card(name=str(run["gpu_name"]), memory_bytes=int(run["gpu_memory_bytes"]), spills_to_host=False)
        is_ok = run["status"] == End.OK
        found = {**sizes, Metric.DEVICE: int(run["peak_device_bytes"])} if is_ok else {}
        yield _own_row(
            name, spec, found, origin=Origin.OURS, end=End(run["status"]), card=card, versions=versions, sample="h200"
        )


def _trials_on_h200(backend: Backend) -> Iterator[tuple[str, Mapping[Any, Any], Sizes]]:
    """Yield the trials of the measured ones' grids on one side, each once, named by what all sides share."""
    seen = set()
    for table in sorted((REFERENCE / "h200" / "tables").glob("*/runs.parquet")):
        runs = pd.read_parquet(table)
        for run in runs[runs.backend == backend].to_dict(orient="records"):
            name = f"h200-{_digest(_spec(run))}"
            if name not in seen:
                seen.add(name)
                sizes = {
                    metric: int(run[f"peak_{metric.value}_bytes"])
                    for metric in (Metric.ALLOCATED, Metric.RESERVED)
                    if pd.notna(run[f"peak_{metric.value}_bytes"]) and run["status"] == End.OK
                }
                yield name, run, sizes


def _digest(spec: TrialSpec) -> str:
    from hashlib import sha256

    return sha256(repr(sorted(job_of(spec).items())).encode()).hexdigest()[:10]


def _spec(run: Mapping[Any, Any]) -> TrialSpec:
    """Return the trial of a row of the table of runs, on the simulated card that is the measured one."""
    values = {key: _plain(key, run[key]) for key in SPEC_KEYS if key in run}
    return spec_from_mapping({**values, "backend": Backend.SIMULATED.value, "gpu": _H200, "weights": "random"})


def _plain(key: str, value: object) -> object:
    """Return a value of the table as a record has it: no list as text, no number as a float because others are null."""
    if value is None or value != value:
        return None
    if key == "lora_target_modules":
        return str(value).split(",")
    return int(value) if isinstance(value, float) and key in _WHOLE else value


def _emulated() -> Iterator[Row]:
    specs = read_sampled((REFERENCE / "emulated" / SAMPLED).read_text())
    for row in _whole_trials("emulated"):
        number = int(row["trial"])
        yield _emulated_row("emulated", number, specs[number], _sizes(row, "emulated"))


def _emulated_on_several_gpus() -> Iterator[Row]:
    for sample in _OF_SEVERAL_GPUS:
        specs = read_sampled((REFERENCE / sample / SAMPLED).read_text())
        for row in _read_csv(REFERENCE / sample / "rows.csv"):
            if row["emulated_allocated_bytes"]:
                sizes = {Metric.ALLOCATED: int(float(row["emulated_allocated_bytes"]))}
                yield _emulated_row(sample, int(row["trial"]), specs[int(row["trial"])], sizes)


def _emulated_row(sample: str, number: int, spec: TrialSpec, sizes: Sizes) -> Row:
    """Return an emulated trial: its peaks are those that an unlimited card would show."""
    gpu = KNOWN_GPUS[str(spec.gpu)]
    largest = max(sizes.values())
    card = Card(name=gpu.title, memory_bytes=max(gpu.memory_bytes, largest), spills_to_host=False)
    return _own_row(
        _name(sample, number),
        spec,
        sizes,
        origin=Origin.EMULATED,
        end=End.OK,
        card=card,
        versions=_EMULATED_VERSIONS,
        sample=sample,
    )


def _own_row(
    name: str,
    spec: TrialSpec,
    sizes: Sizes,
    *,
    origin: Origin,
    end: End,
    card: Card,
    versions: Mapping[str, str],
    sample: str,
) -> Row:
    read_by = {Metric.DEVICE: ReadBy.COUNTER_AND_CONTEXT}
    return Row(
        row_id=name,
        origin=origin,
        trainer=f"trl {spec.recipe.in_classes}Trainer",
        versions=versions,
        card=card,
        job=job_of(spec),
        assumed=(),
        beyond=(),
        differs=(),
        missing=(),
        end=end,
        peaks=tuple(
            Peak(metric=metric, size_bytes=size, unit_bytes=1, read_by=read_by.get(metric, ReadBy.TORCH_COUNTER))
            for metric, size in sizes.items()
        ),
        source=Source(url=f"results/reference/{sample}", commit="of this repository", licence=_LICENCE),
    )


def job_of(spec: TrialSpec) -> Mapping[str, object]:
    """Return the keys of a trial that decide its peaks, as a row has them."""
    return {key: value for key, value in spec_to_mapping(spec).items() if key not in _NOT_OF_THE_JOB}


def _whole_trials(side: str) -> list[Mapping[str, str]]:
    """Return kept rows with a peak of the whole trial; of one that ran out of memory, on an unlimited card."""
    rows = _read_csv(REFERENCE / "emulated" / "rows.csv")
    wanted = {("ok", "all"), ("oom", "required")}
    return [row for row in rows if (row["emulated_status"], row["phase"]) in wanted and row[f"{side}_allocated_bytes"]]


def _sizes(row: Mapping[str, str], side: str) -> Sizes:
    return {metric: int(row[f"{side}_{metric.value}_bytes"]) for metric in (Metric.ALLOCATED, Metric.RESERVED)}


def _read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
