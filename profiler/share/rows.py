"""What was measured as rows of the benchmark, and rows as lines.

A row has no text of its user: each text is a word of this program, a version, or the name of a card or a model that is
known to all.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from profiler.allocator import parse_alloc_conf
from profiler.analytical import model_of_recipe, parameter_count
from profiler.config.models.lookup import builtin_architecture
from profiler.config.trials.identity import spec_to_mapping
from profiler.config.trials.specification import parse_point
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.cards.gpu import KNOWN_GPUS, Gpu
from profiler.domain.errors import Fault, UsageError
from profiler.domain.models.builtin_models import find_builtin
from profiler.domain.runs.outcome import PACKAGES, Outcome, Status, TrialRecord, Versions
from profiler.domain.runs.shared import (
    Metric,
    Peak,
    ReadBy,
    Row,
    RowCard,
    RowEnd,
    RowOrigin,
    RowSource,
    impossible,
)
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import (
    ZERO_OF_WEIGHTS,
    Backend,
    DistributedType,
    OffloadDevice,
    TrialSpec,
    Tuning,
)
from profiler.storage.files.typed_json import to_json

CAPPED = "torch's allocator was limited to the memory of the row's card, on a larger one of the job's name"
"""Of a row of a card that was capped (`differs`)."""
LONGEST_BATCH = "length of the longest batch"
"""Of a row of a training on data (`missing`)."""
OF_PROMPTS = "lengths of the prompts"

SENT = RowSource(url="sent to this project", commit="python -m profiler.share", licence="Apache-2.0")
PUBLIC_VERSION = re.compile(r"\d+(?:\.\d+){0,3}(?:(?:a|b|rc)\d+)?(?:\.post\d+)?(?:\.dev\d+)?")
"""A version without its local part (``+cu128``), which can name a company."""
_CAP = re.compile(r" capped to \d+ GiB")

_NOT_OF_THE_JOB = frozenset({"backend", "weights", "dataset", "seed"})
"""Keys of a trial that no peak depends on."""

_WEIGHT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_FOUR_BITS = 0.5

_EMULATED = "emulated"
"""In the version of an emulated driver, and `_EMULATED_CARD` in the name of its cards (`emulation/driver`)."""
_EMULATED_CARD = "GPU-01020304-0506-0708-090a-"

ArchitectureOf = Callable[[str], Architecture]


# ---- lines -----------------------------------------------------------------------------------------------------------


def row_line(row: Row) -> str:
    """Return a row as one line of JSON, without its end."""
    return json.dumps(to_json(row), ensure_ascii=False)


def rows_text(rows: Iterable[Row]) -> str:
    """Return rows as the text of a file, by their names."""
    return "".join(f"{row_line(row)}\n" for row in sorted(rows, key=lambda row: row.row_id))


# ---- the job of a row ------------------------------------------------------------------------------------------------


def job_of(spec: TrialSpec) -> Mapping[str, object]:
    """Return the keys of a trial that decide its peaks, as a row has them."""
    return {key: value for key, value in spec_to_mapping(spec).items() if key not in _NOT_OF_THE_JOB}


def spec_of(row: Row, architecture_of: ArchitectureOf) -> TrialSpec:
    """Return the job of a row as a trial on a simulated card.

    Raises:
        UsageError: The job has something that no key can say, or a key is refused.
    """
    if row.beyond:
        found = "; ".join(row.beyond)
        raise UsageError([Fault(key="job", found=found, problem="is beyond the keys of a trial")])
    return parse_point({"backend": Backend.SIMULATED.value, **row.job}, architecture_of=architecture_of)


def least_bytes(job: Mapping[str, object], architecture: Architecture) -> int:
    """Return a lower bound of a job's memory on one card: the weights that stay there."""
    size = _FOUR_BITS if job["tuning"] == Tuning.QLORA else _WEIGHT_BYTES[str(job.get("dtype", "bfloat16"))]
    is_sharded = job.get("distributed_type") == DistributedType.FSDP or job.get("zero_stage") == ZERO_OF_WEIGHTS
    is_on_host = job.get("offload_param_device") == OffloadDevice.CPU or job.get("fsdp_offload_params") is True
    processes = int(str(job.get("num_processes", 1))) if is_sharded else 1
    model = model_of_recipe(Recipe(str(job.get("recipe", Recipe.GRPO))), architecture)
    return 0 if is_on_host else int(int(parameter_count(model)) * size) // processes


def impossible_peaks(row: Row) -> list[Fault]:
    """Return what breaks physics in the peaks of a row whose model is built in, or why its job is refused."""
    try:
        spec = spec_of(row, architecture_of)
    except UsageError as error:
        return list(error.faults)
    return list(impossible(row, least_bytes=least_bytes(row.job, architecture_of(spec.model))))


# ---- measured, as rows -----------------------------------------------------------------------------------------------


def row_of_trial(record: TrialRecord) -> Row:
    """Return a measured trial as a row to be sent.

    Raises:
        UsageError: It was not measured, has no answer, or has a text of its user; the sentence says which.
    """
    spec, outcome = record.spec, record.outcome
    key = f"trial {record.trial_id}"
    if spec.backend is not Backend.CUDA:
        raise _left_out(key, f"backend={spec.backend}", "is not measured: only rows of a real card are shared")
    card = known_card(key, outcome)
    refuse_texts(key, spec)
    on_card = replace(spec, backend=Backend.SIMULATED, gpu=card.name, model=_builtin_name(key, spec.model))
    missing = (OF_PROMPTS,) if spec.dataset is not None else ()
    return row_of(key, on_card, record.versions, outcome, missing=missing)


def row_of(key: str, spec: TrialSpec, versions: Versions, outcome: Outcome, *, missing: tuple[str, ...] = ()) -> Row:
    """Return an outcome on a real card as a row to be sent.

    Args:
        key: Names it in the sentence of a fault.
        spec: The job on the simulated card of that name.
        versions: Of the packages that ran it.
        outcome: What was measured.
        missing: What the record does not state.

    Raises:
        UsageError: It has no answer, or is of an emulated driver.
    """
    measured, card = outcome.measured, outcome.card
    if measured is not None and (
        _EMULATED in (measured.driver_version or "") or (measured.gpu_uuid or "").startswith(_EMULATED_CARD)
    ):
        raise _left_out(key, "an emulated driver", "measures nothing: only rows of a real card are shared")
    if outcome.status not in (Status.OK, Status.OOM):
        raise _left_out(key, f"status={outcome.status}", "is no answer: a row has peaks, or ran out of memory")
    of_parameters = _counted_parameters(spec)
    if outcome.work.parameters not in (None, of_parameters):
        problem = f"is not the model that ran: it has {of_parameters:,} parameters, and {outcome.work.parameters:,} ran"
        raise UsageError([Fault(key="model", found=spec.model, problem=problem)])
    known, unknown = _versions(versions, (measured.driver_version or "") if measured is not None else "")
    is_capped = _CAP.search(card.name or "") is not None
    job, end = job_of(spec), RowEnd(outcome.status.value)
    memory = card.memory_bytes or 0
    peaks = tuple(_peaks(outcome)) if end is RowEnd.OK else ()
    named = [sorted(job.items()), known, memory, [(peak.metric.value, peak.size_bytes) for peak in peaks]]
    return Row(
        row_id=f"sent-{hashlib.sha256(repr(named).encode()).hexdigest()[:16]}",
        origin=RowOrigin.SENT,
        trainer=trainer_of(spec.recipe),
        versions=known,
        card=RowCard(name=KNOWN_GPUS[str(spec.gpu)].title, memory_bytes=memory, spills_to_host=False),
        job=job,
        assumed=(),
        beyond=(),
        differs=(CAPPED,) if is_capped else (),
        missing=(*missing, *unknown),
        end=end,
        peaks=peaks,
        source=SENT,
    )


def _counted_parameters(spec: TrialSpec) -> int:
    """Return the parameters that a trial's worker counts: also those of peft's trained copy of a head of scores."""
    model = model_of_recipe(spec.recipe, architecture_of(spec.model))
    copied = 0 if spec.tuning is Tuning.FULL else model.scores * model.hidden_size
    return int(parameter_count(model) + copied)


def known_card(key: str, outcome: Outcome) -> Gpu:
    """Return the card that ran, by the name that its driver gives it.

    Raises:
        UsageError: No row has it.
    """
    name = _CAP.sub("", outcome.card.name or "")
    found = next((gpu for gpu in KNOWN_GPUS.values() if gpu.title == name), None)
    if found is None or not outcome.card.memory_bytes:
        hint = "CONTRIBUTING.md says how to add a card."
        raise _left_out(key, f"card={name or 'none'}", "is no card that is known", hint)
    return found


def trainer_of(recipe: Recipe) -> str:
    """Return the program that ran the steps of a trial."""
    return f"trl {recipe.in_classes}Trainer"


def architecture_of(model: str) -> Architecture:
    """Return the architecture of a built-in model.

    Raises:
        UsageError: There is none of that name.
    """
    found = builtin_architecture(model)
    if found is None:
        raise _left_out("model", model, "is not built in, and a row names no other")
    return found


def _left_out(key: str, found: str, problem: str, hint: str = "") -> UsageError:
    return UsageError([Fault(key=key, found=found, problem=problem, hint=hint)])


def _builtin_name(key: str, model: str) -> str:
    found = find_builtin(model)
    if found is None:
        hint = "CONTRIBUTING.md says how to add a model."
        raise _left_out(key, f"model={model}", "is not built in, and a row names no other", hint)
    return found.name


def refuse_texts(key: str, spec: TrialSpec) -> None:
    """Raise if a key has a text that is no word of this program.

    Raises:
        UsageError: One has.
    """
    for name in spec.reward_models or ():
        _builtin_name(key, name)
    try:
        parse_alloc_conf(spec.alloc_conf)
    except UsageError as error:
        raise _left_out(key, "alloc_conf", "has a key or a value that torch's allocator does not know") from error


def _versions(versions: Versions, driver: str) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Return the versions without what only their user knows, and a phrase for each that cannot be said."""
    found = {name: getattr(versions, name) for name in PACKAGES if getattr(versions, name) is not None}
    if driver:
        found["driver"] = driver
    public = {name: version.partition("+")[0] for name, version in found.items()}
    known = {name: version for name, version in public.items() if PUBLIC_VERSION.fullmatch(version)}
    return known, tuple(f"version of {name}" for name in found if name not in known)


def _peaks(outcome: Outcome) -> Iterator[Peak]:
    peaks = outcome.peaks
    for metric, size in (
        (Metric.ALLOCATED, peaks.allocated_bytes),
        (Metric.RESERVED, peaks.reserved_bytes),
        (Metric.DEVICE, peaks.device_bytes),
    ):
        if size is not None:
            read_by = ReadBy.COUNTER_AND_CONTEXT if metric is Metric.DEVICE else ReadBy.TORCH_COUNTER
            yield Peak(metric=metric, size_bytes=size, unit_bytes=1, read_by=read_by)
