"""Made-up records of many varied trials, which `maintenance.bench` and the tests of scale read and draw.

The trials are real specifications of built-in models. Their sizes follow the closed form, so that larger trials need
more memory and some exceed their card. Two calls return equal records.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product
from math import prod
from typing import Any

from maintenance.accuracy.sampling import sample
from maintenance.samples.sampling import architecture_of
from profiler.analytical import parameter_count
from profiler.analytical.many import estimate_specs
from profiler.config.trials.identity import labels, trial_id
from profiler.config.trials.specification import parse_point
from profiler.domain.cards.gpu import KNOWN_GPUS, Gpu
from profiler.domain.memory import MIB, Category, Phase
from profiler.domain.runs.outcome import (
    Breakdown,
    CardFacts,
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
from profiler.domain.runs.readings import CategoryShare, OutOfMemory, PhasePeak, StepInstant, StepPeak, TensorGroup
from profiler.domain.trials.trial import Backend, TrialSpec, Tuning

VERSIONS = Versions(
    torch="2.13.0", trl="1.16.0", transformers="5.10.1", peft="0.18.2", bitsandbytes="0.49.0", profiler="0.2.0"
)

GRID = "many"

_MODELS = (
    "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b", "qwen2.5-14b",
    "llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b",
)  # fmt: skip

_METHODS: Sequence[Mapping[str, object]] = [
    {"tuning": tuning, "optim": optim, "gradient_checkpointing": checkpointing}
    for tuning, optims in (("full", ("adamw_torch_fused", "adamw_8bit", "adafactor")), ("lora", ("adamw_torch_fused",)))
    for optim in optims
    for checkpointing in (False, True)
]

_AXES: Mapping[str, Sequence[object]] = {
    "per_device_train_batch_size": (4, 8, 16),
    "max_completion_length": (256, 512, 786, 1024, 1536, 2048, 3072),
    "max_prompt_length": (128, 256, 512, 1024),
    "gpu": ("a100-40gb", "h100-80gb"),
}

_MORE_AXES: Mapping[str, Sequence[object]] = {
    "gradient_accumulation_steps": (2, 4, 16, 32, 64),
    "beta": (0.0, 0.04),
}
"""Further axes of a grid that has more trials than those of `_AXES`."""

_MEASURED_EVERY = 10
"""One trial of so many is measured on a card instead of simulated."""
_FAILED_EVERY = 97
_SHAPE_INSTANTS = 10
"""Per phase, as the simulation keeps them."""
_CONTEXT_BYTES = 500 * MIB
_SHARED = tuple(Category)[:8]
"""The categories of every peak."""


def many_specs(count: int) -> tuple[TrialSpec, ...]:
    """Return `count` trials of one large grid: models, methods, batches, lengths and cards.

    Raises:
        ValueError: The grid has fewer trials.
    """
    axes = dict(_AXES)
    if count > len(_MODELS) * len(_METHODS) * prod(map(len, axes.values())):
        axes |= _MORE_AXES
    combinations = [
        (model, method, values) for model, method in product(_MODELS, _METHODS) for values in product(*axes.values())
    ]
    random.Random(0).shuffle(combinations)
    found = []
    for number, (model, method, values) in enumerate(islice(combinations, count)):
        backend = "cuda" if number % _MEASURED_EVERY == 0 else "simulated"
        point = {"backend": backend, "model": model, **method, **dict(zip(axes, values, strict=True))}
        found.append(parse_point(point, architecture_of=architecture_of))
    if len(found) < count:
        raise ValueError(f"the grid has {len(found)} trials, not {count}")
    return tuple(found)


def scattered_specs(count: int) -> tuple[TrialSpec, ...]:
    """Return `count` simulated trials in which every key varies by itself, so that labels are as long as they get."""
    return sample(count, seed=1)


def varied_records(specs: Sequence[TrialSpec]) -> Iterator[TrialRecord]:
    """Yield a record per trial: most fit, others ran out of memory, and some failed."""
    estimates = estimate_specs(specs, {spec.model: architecture_of(spec.model) for spec in specs})
    for row, (spec, label) in enumerate(zip(specs, labels(specs), strict=True)):
        chance = random.Random(row)
        peaks = {phase: int(sizes[row] * chance.uniform(0.9, 1.1)) for phase, sizes in estimates.phases.items()}
        outcome = _failed(row) if row % _FAILED_EVERY == 5 else _outcome(spec, peaks, chance)
        yield TrialRecord(
            trial_id=trial_id(spec, VERSIONS), grid=GRID, label=label, spec=spec, versions=VERSIONS, outcome=outcome
        )


def _failed(row: int) -> Outcome:
    lines = "".join(f'  File "trainer.py", line {number}, in step\n' for number in range(40))
    return Outcome(
        verdict=Verdict(status=Status.FAILED, message=f"Traceback:\n{lines}RuntimeError: made up, number {row}"),
        work=Work(wall_s=3.0, steps_run=0, micro_batches_run=0),
    )


def _outcome(spec: TrialSpec, peaks: Mapping[Phase, int], chance: random.Random) -> Outcome:
    gpu = KNOWN_GPUS[spec.gpu or "h100-80gb"]
    peaks = {phase: size for phase, size in peaks.items() if size}
    required = max(peaks.values())
    usable = gpu.memory_bytes - _CONTEXT_BYTES
    fits = required <= usable
    reached = {phase: min(size, usable * 9 // 10) for phase, size in peaks.items()}
    peak_phase = max(reached, key=lambda phase: reached[phase])
    allocated = reached[peak_phase]
    shares = _shares(allocated, chance)
    oom = None if fits else OutOfMemory(phase=peak_phase, requested_bytes=512 * MIB, free_bytes=200 * MIB)
    parameters = int(parameter_count(architecture_of(spec.model)))
    measured = spec.backend is Backend.CUDA
    return Outcome(
        verdict=Verdict(status=Status.OK if fits else Status.OOM, oom=oom),
        work=Work(
            parameters=parameters,
            trainable_parameters=parameters if spec.tuning is Tuning.FULL else 9_000_000,
            steps_run=spec.steps if fits else 0,
            micro_batches_run=spec.steps * spec.gradient_accumulation_steps if fits else 0,
            wall_s=round(chance.uniform(4, 40), 3),
            host_peak_rss_bytes=900 * MIB,
            gpu_s=20.0 if measured else None,
        ),
        card=CardFacts(name=gpu.title, memory_bytes=gpu.memory_bytes, context_bytes=_CONTEXT_BYTES),
        peaks=Peaks(
            allocated_bytes=allocated,
            reserved_bytes=allocated + 300 * MIB,
            device_bytes=allocated + 300 * MIB + _CONTEXT_BYTES,
            phase=peak_phase,
            phases=tuple(
                PhasePeak(phase=phase, peak_allocated_bytes=size, peak_reserved_bytes=size + 200 * MIB)
                for phase, size in reached.items()
            ),
            inactive_split_bytes=40 * MIB,
            alloc_retries=0,
        ),
        breakdown=Breakdown(shares=shares, largest=_largest(shares, peak_phase, gpu, chance)),
        unlimited=None if measured else _unlimited(required, peaks, chance),
        measured=_measured(reached) if measured else None,
    )


def _shares(whole: int, chance: random.Random) -> tuple[CategoryShare, ...]:
    """Split a peak into eight categories that sum to it."""
    parts = [chance.random() for _ in _SHARED]
    total = sum(parts)
    sizes = [int(whole * part / total) for part in parts]
    sizes[0] += whole - sum(sizes)
    return tuple(
        CategoryShare(category=category, size_bytes=size) for category, size in zip(_SHARED, sizes, strict=True) if size
    )


def _largest(
    shares: tuple[CategoryShare, ...], phase: Phase, gpu: Gpu, chance: random.Random
) -> tuple[TensorGroup, ...]:
    groups = [
        TensorGroup(
            category=share.category,
            size_bytes=share.size_bytes // (number + 2),
            tensors=chance.randint(1, 48),
            shape=(chance.randint(1, 151936), chance.randint(1, 8192)),
            dtype="bfloat16",
            name="" if number % 2 else f"gradient of model.layers.*.mlp.down_proj.{number}",
            module="model.layers.*.mlp" if number % 2 else "",
            operation=f"aten.mm on {gpu.name}",
            phase=phase,
        )
        for number, share in enumerate((*shares, *shares[:2]))
    ]
    return tuple(sorted(groups, key=lambda group: -group.size_bytes))


def _unlimited(required: int, peaks: Mapping[Phase, int], chance: random.Random) -> UnlimitedCard:
    shape = []
    for phase, peak in peaks.items():
        for _ in range(_SHAPE_INSTANTS):
            shape.append(StepInstant(phase=phase, shares=_shares(int(peak * chance.uniform(0.3, 1.0)), chance)))
    return UnlimitedCard(
        required_allocated_bytes=required,
        required_reserved_bytes=required + 500 * MIB,
        required_unreleasable_bytes=required + 100 * MIB,
        step_shape=tuple(shape),
    )


def _measured(reached: Mapping[Phase, int]) -> MeasuredDetails:
    values: dict[str, Any] = {"gpu_uuid": "GPU-0", "driver_version": "580.1", "startup_s": 6.0, "load_s": 2.0}
    steps = [
        StepPeak(step=step, phase=phase, peak_allocated_bytes=size, peak_reserved_bytes=size + 200 * MIB, time_s=0.5)
        for step in (1, 2, 3)
        for phase, size in reached.items()
    ]
    return replace(MeasuredDetails(**values), rollout_s=1.5, settled_step=2, step_peaks=tuple(steps))
