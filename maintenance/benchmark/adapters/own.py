"""The project's own answers, and the rules that it compares itself with: called here, without another environment."""

import csv
from functools import cache

from maintenance.accuracy.baselines import accelerate_training_bytes, verl_report_bytes
from maintenance.benchmark.adapters.question import NotCoveredError, Question, Said
from maintenance.benchmark.rows.jobs import FOLDER, architecture_of, spec_of
from maintenance.benchmark.rows.kept import kept_simulations
from profiler.analytical.estimate import estimate_with_replay as closed_form
from profiler.domain.errors import UsageError
from profiler.domain.models.builtin_models import find_builtin
from profiler.domain.runs.shared import Metric, Row
from profiler.domain.trials.optimizers import Optimizer

SIMULATED = FOLDER / "simulated.csv"
_ADAM = (Optimizer.ADAMW_TORCH, Optimizer.ADAMW_TORCH_FUSED)


def estimate(row: Row) -> Said:
    """Return the closed form: allocated and reserved memory."""
    try:
        spec = spec_of(row)
        found = closed_form(spec, architecture_of(spec.model))
    except UsageError as error:
        raise NotCoveredError(error.faults[0].sentence()) from error
    sizes = {Metric.ALLOCATED: found.peak_allocated_bytes, Metric.RESERVED: found.peak_reserved_bytes}
    return {metric.value: size for metric, size in sizes.items() if size is not None}


def simulation(row: Row) -> Said:
    """Return what the simulation said: kept results, and rows of others that ran in it."""
    kept = {name.value: size for name, size in kept_simulations().get(row.row_id, {}).items()}
    said = kept or simulated_rows().get(row.row_id)
    if not said:
        raise NotCoveredError("not simulated")
    return said


@cache
def simulated_rows() -> dict[str, Said]:
    """Return what rows of others need in the simulation, by their names."""
    if not SIMULATED.exists():
        return {}
    with SIMULATED.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {row["row_id"]: {name: int(row[f"{name}_bytes"]) for name in ("allocated", "reserved")} for row in rows}


def rule_of_thumb(row: Row) -> Said:
    """Return the rule of the published blog: states of the model, on one GPU."""
    try:
        spec = spec_of(row)
        if spec.num_processes != 1:
            raise NotCoveredError("several GPUs")
        return {Metric.ALLOCATED: closed_form(spec, architecture_of(spec.model)).peak_rule_bytes}
    except UsageError as error:
        raise NotCoveredError(error.faults[0].sentence()) from error


def verl_report(row: Row) -> Said:
    """Return the formulas of the public report on verl's GRPO: full training on one GPU."""
    if row.job["recipe"] != "grpo" or row.job["tuning"] != "full" or row.job["num_processes"] != 1:
        raise NotCoveredError("not GRPO of a whole model on one GPU")
    spec = spec_of(row)
    if find_builtin(spec.model) is None or spec.optim not in _ADAM:
        raise NotCoveredError(f"optim={spec.optim}")
    return {Metric.ALLOCATED: verl_report_bytes(spec)}


def accelerate(question: Question) -> Said:
    """Return `accelerate estimate-memory`, "training using Adam": full training at a batch of one, on one GPU."""
    question.needs("tuning", "full")
    question.needs("num_processes", 1)
    question.needs("optim", *_ADAM)
    precision = "float32" if question.half_type == "fp32" and not question.job["bf16"] else "float16"
    return {Metric.ALLOCATED: accelerate_training_bytes(question.config, precision)}
