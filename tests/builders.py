"""Builders of specs, records, estimates and tables for tests: plausible, made up, and the same on every run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from profiler.config.trials.identity import labels, trial_id
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import MIB, NOT_EMULATED, TRIAL_PHASES, Category, Phase
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.runs.outcome import (
    Breakdown,
    CardFacts,
    EmulatedDetails,
    Estimate,
    MeasuredDetails,
    Outcome,
    Peaks,
    Status,
    TrialRecord,
    UnlimitedCard,
    Verdict,
    Versions,
    Work,
)
from profiler.domain.runs.readings import CategoryShare, OutOfMemory, PhasePeak, StepPeak
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.trial import Attention, Backend, Logprobs, PlannedTrial, TrialSpec, Tuning
from profiler.storage.records.outcome_fields import OUTCOME_FIELDS
from profiler.storage.sweep_tables.tables import Tables, read_tables, write_tables

VERSIONS = Versions(
    torch="2.13.0", trl="1.16.0", transformers="5.10.1", peft="0.18.2", bitsandbytes="0.49.0", profiler="0.1.0"
)

EMULATED_VERSIONS = replace(VERSIONS, torch="2.13.0+cu130", cuda="13.0", emulation="1")

H100 = KNOWN_GPUS["h100-80gb"]

QWEN = ("qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b", "qwen2.5-14b")
OXEN = ("qwen2.5-0.5b", "llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b", "qwen2.5-14b")

_OPTIMIZER_BYTES = {Optimizer.ADAMW_8BIT: 2, Optimizer.PAGED_ADAMW_8BIT: 2, Optimizer.SGD: 0}


def spec(**changes: object) -> TrialSpec:
    """A simulated full fine-tuning of the smallest Qwen, with `changes`."""
    given = {"backend": Backend.SIMULATED, "gpu": H100.name, "model": "qwen2.5-0.5b", "beta": 0.04, **changes}
    return TrialSpec(**given)


def lora(**changes: object) -> TrialSpec:
    """The same with LoRA, its keys filled in."""
    modules = ("q_proj", "k_proj", "o_proj", "up_proj", "down_proj")
    return spec(tuning=Tuning.LORA, lora_rank=16, lora_alpha=32, lora_target_modules=modules, **changes)


def lora_vs_full_specs(models: Sequence[str] = QWEN, **changes: object) -> list[TrialSpec]:
    """Five methods over `models`."""
    found = []
    for model in models:
        same = {"model": model, **changes}
        found += [
            spec(**same, gradient_checkpointing=False),
            spec(**same, gradient_checkpointing=False, optim=Optimizer.ADAMW_8BIT),
            spec(**same, gradient_checkpointing=True, optim=Optimizer.ADAMW_8BIT),
            lora(**same, gradient_checkpointing=False),
            lora(**same, gradient_checkpointing=True),
        ]
    return found


def oxen_specs() -> list[TrialSpec]:
    """The blog's four methods over its models."""
    found = []
    for model in OXEN:
        same = {
            "model": model,
            "steps_per_generation": 1,
            "logprobs": Logprobs.FULL,
            "attn_implementation": Attention.FLASH_ATTENTION_2,
        }
        found += [
            spec(**same, optim=Optimizer.ADAMW_TORCH, gradient_checkpointing=False),
            spec(**same, optim=Optimizer.ADAMW_8BIT, gradient_checkpointing=False),
            spec(**same, optim=Optimizer.ADAMW_8BIT, gradient_checkpointing=True),
            lora(**same, optim=Optimizer.ADAMW_TORCH, gradient_checkpointing=False),
        ]
    return found


def shares(spec: TrialSpec) -> dict[Category, int]:
    """A made-up breakdown of a peak; grows with the model, its method and its batch as a real one does."""
    model = BUILTIN_MODELS[spec.model]
    layers, hidden = int(model.config["num_hidden_layers"]), int(model.config["hidden_size"])
    tokens = spec.per_device_train_batch_size * (spec.max_prompt_length + spec.max_completion_length)
    full = spec.tuning is Tuning.FULL
    adapters = 0 if full else layers * hidden * 16 * 20
    trainable = model.parameters if full else adapters
    found = {
        Category.WEIGHTS: 2 * model.parameters,
        Category.REFERENCE: 2 * model.parameters if spec.keeps_reference_model else 0,
        Category.ADAPTERS: 2 * adapters,
        Category.GRADIENTS: 2 * trainable,
        Category.OPTIMIZER_STATE: trainable * _OPTIMIZER_BYTES.get(spec.optim, 4),
        Category.ACTIVATIONS: tokens * hidden * (2 * layers if spec.gradient_checkpointing else 34 * layers),
        Category.LOGITS: 300 * MIB,
        Category.KV_CACHE: 0,
        Category.INPUTS: tokens * 40,
        Category.WORKSPACE: 64 * MIB,
        Category.OTHER: 3 * MIB,
    }
    return {category: size for category, size in found.items() if size}


def outcome(spec: TrialSpec, *, scale: float = 1.0) -> Outcome:
    """A finished simulation of `spec`: `ok`, or `oom` where its peak is beyond the card's memory."""
    parts = {category: int(size * scale) for category, size in shares(spec).items()}
    required, memory = sum(parts.values()), KNOWN_GPUS[spec.gpu or H100.name].memory_bytes
    fits = required <= memory
    if not fits:
        # Before failing it got as far as the model and what of the rest had room.
        parts = {category: size * memory * 9 // (required * 10) for category, size in parts.items()}
    peak = sum(parts.values())
    return Outcome(
        verdict=Verdict(
            status=Status.OK if fits else Status.OOM,
            oom=None if fits else OutOfMemory(phase=Phase.BACKWARD, requested_bytes=512 * MIB),
        ),
        work=Work(
            parameters=BUILTIN_MODELS[spec.model].parameters,
            trainable_parameters=BUILTIN_MODELS[spec.model].parameters if spec.tuning is Tuning.FULL else 9_000_000,
            steps_run=3 if fits else 0,
            micro_batches_run=12 if fits else 0,
            wall_s=21.5,
            host_peak_rss_bytes=900 * MIB,
        ),
        card=CardFacts(name=KNOWN_GPUS[spec.gpu or H100.name].title, memory_bytes=memory),
        peaks=Peaks(
            allocated_bytes=peak,
            phase=Phase.BACKWARD,
            phases=tuple(
                PhasePeak(phase=phase, peak_allocated_bytes=peak * part // 100, peak_reserved_bytes=None)
                for phase, part in zip(TRIAL_PHASES, (30, 55, 70, 45, 90, 100, 80), strict=True)
            ),
        ),
        breakdown=Breakdown(
            shares=tuple(CategoryShare(category=category, size_bytes=size) for category, size in parts.items())
        ),
        unlimited=UnlimitedCard(required_allocated_bytes=required),
    )


_EMPTY_PARTS = {
    "unlimited": UnlimitedCard(required_allocated_bytes=0),
    "measured": MeasuredDetails(),
    "emulated": EmulatedDetails(values=""),
}


def outcome_of(status: Status = Status.OK, **values: object) -> Outcome:
    """An outcome with these values, by the keys of a stored record."""
    return changed(Outcome(verdict=Verdict(status=status)), **values)


def changed(outcome: Outcome, **values: object) -> Outcome:
    """The outcome with other values, by the keys of a stored record."""
    for key, value in values.items():
        part, attribute = OUTCOME_FIELDS[key]
        holder = getattr(outcome, part)
        if holder is None:
            holder = _EMPTY_PARTS[part]
        is_simulated = key != "required_allocated_bytes" or value is not None
        outcome = replace(outcome, **{part: replace(holder, **{attribute: value}) if is_simulated else None})
    return outcome


def failed(status: Status = Status.FAILED, message: str = "RuntimeError: made up | <for> a test") -> Outcome:
    """Outcome of a trial without an answer."""
    return Outcome(verdict=Verdict(status=status, message=message))


def on_cpu() -> Outcome:
    """A trial that ran on the CPU: GPU figures unknown."""
    return outcome_of(parameters=119_360, trainable_parameters=119_360, steps_run=3, wall_s=4.0)


def record(
    spec: TrialSpec, *, outcome: Outcome, label: str = "full", grid: str = "made_up", versions: Versions = VERSIONS
) -> TrialRecord:
    """A record with the trial id that belongs to it."""
    return TrialRecord(
        trial_id=trial_id(spec, versions), grid=grid, label=label, spec=spec, versions=versions, outcome=outcome
    )


def emulated(spec: TrialSpec, *, label: str = "full", grid: str = "made_up", **changes: object) -> TrialRecord:
    """A finished emulation of `spec`, with the peaks that its simulation has, and `changes` to its outcome."""
    ran = replace(spec, backend=Backend.EMULATED)
    peaks = outcome(spec)
    step = StepPeak(
        step=1,
        phase=Phase.BACKWARD,
        peak_allocated_bytes=int(peaks.peaks.allocated_bytes or 0),
        peak_reserved_bytes=int(peaks.peaks.allocated_bytes or 0),
        time_s=None,
    )
    counted = replace(
        peaks,
        verdict=replace(peaks.verdict, unavailable=NOT_EMULATED),
        unlimited=None,
        measured=MeasuredDetails(step_peaks=(step,)),
        emulated=EmulatedDetails(values="complete"),
        breakdown=Breakdown(),
    )
    return record(ran, outcome=changed(counted, **changes), label=label, grid=grid, versions=EMULATED_VERSIONS)


def records(specs: Sequence[TrialSpec], *, grid: str = "made_up") -> list[TrialRecord]:
    """A finished simulation of each spec, labelled as a sweep labels them."""
    return [
        record(spec, outcome=outcome(spec), label=label, grid=grid)
        for spec, label in zip(specs, labels(specs), strict=True)
    ]


def planned(record: TrialRecord) -> PlannedTrial:
    """The trial of a record before it ran."""
    return PlannedTrial(trial_id=record.trial_id, grid=record.grid, label=record.label, spec=record.spec)


def estimate(record: TrialRecord, *, ratio: float = 0.97, rule_ratio: float = 1.4) -> Estimate:
    """An estimate that is `ratio` of what the record needs, and a rule of thumb that is `rule_ratio` of it."""
    simulated, peak = record.outcome.unlimited, record.outcome.peaks.allocated_bytes
    result = simulated.required_allocated_bytes if simulated else peak or 0
    return Estimate(
        peak_allocated_bytes=int(result * ratio),
        peak_reserved_bytes=None,
        peak_rule_bytes=int(result * rule_ratio),
        peak_phase=Phase.BACKWARD,
    )


def estimates(records: Sequence[TrialRecord]) -> Mapping[str, Estimate]:
    """An estimate each, from 8 % too low to 8 % too high."""
    ratios = (0.92, 0.96, 1.0, 1.03, 1.08)
    return {
        each.trial_id: estimate(each, ratio=ratios[i % 5], rule_ratio=0.6 + 0.3 * (i % 4))
        for i, each in enumerate(records)
    }


def write_folder(folder: Path, records: Sequence[TrialRecord], **about: str) -> Path:
    """A results folder with the tables of `records`."""
    write_tables(folder, records, estimates(records), **about)
    return folder


def tables(folder: Path, records: Sequence[TrialRecord]) -> Tables:
    """The tables of `records`, by way of the disk as a report gets them."""
    return read_tables(write_folder(folder, records))


def relabelled(record: TrialRecord, label: str) -> TrialRecord:
    """The record under another label."""
    return replace(record, label=label)
