"""A trial on a GPU that is not there: training and simulation brought together."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profiler.allocator import Peaks, Trace, replay
from profiler.domain.gpu import KNOWN_GPUS, Gpu
from profiler.domain.outcome import CategoryShare, Outcome, OutOfMemory, PhasePeak, Status
from profiler.domain.trial import TrialSpec
from profiler.domain.units import gib_text
from profiler.simulation.device import UnsupportedOperationError
from profiler.simulation.session import Simulation
from profiler.training.job import build_trainer
from profiler.training.sizes import parameter_counts


def run_simulated(spec: TrialSpec, model_config: Mapping[str, Any]) -> Outcome:
    """Run the real trainer on the simulated card of the specification and say what the card would have said."""
    gpu = KNOWN_GPUS[str(spec.gpu)]
    simulation = Simulation(gpu)
    try:
        trainer = _train(spec, model_config, simulation)
    except UnsupportedOperationError as error:
        return Outcome(
            status=Status.UNSUPPORTED, gpu_name=gpu.title, gpu_memory_bytes=gpu.memory_bytes, message=str(error)
        )
    parameters, trainable = parameter_counts(trainer.model)
    return _outcome(
        simulation.recorder.finished(),
        gpu,
        parameters=parameters,
        trainable_parameters=trainable,
        steps_run=trainer.state.global_step,
        micro_batches_run=trainer.micro_batches_run,
    )


def _train(spec: TrialSpec, model_config: Mapping[str, Any], simulation: Simulation) -> Any:
    with tempfile.TemporaryDirectory() as folder, simulation.running():
        trainer = build_trainer(
            spec,
            model_config=model_config,
            placement=simulation,
            observer=simulation,
            output_dir=Path(folder),
            arguments_ready=simulation.adopt,
            shortcut_rollout=True,
        )
        simulation.trainer_ready(trainer)
        trainer.train()
        simulation.trainer_done(trainer)
    return trainer


def _outcome(trace: Trace, gpu: Gpu, **counts: int) -> Outcome:
    """Peaks on the card; if it does not fit, up to the allocation that fails, with what would have been needed."""
    unlimited = replay(trace)
    on_card = replay(trace, capacity_bytes=gpu.memory_bytes)
    return Outcome(
        status=Status.OK if on_card.refusal is None else Status.OOM,
        gpu_name=gpu.title,
        gpu_memory_bytes=gpu.memory_bytes,
        peak_allocated_bytes=on_card.peak_allocated_bytes,
        peak_phase=on_card.peak_phase,
        required_allocated_bytes=unlimited.peak_allocated_bytes,
        oom=_out_of_memory(on_card),
        phases=tuple(
            PhasePeak(phase=phase, peak_allocated_bytes=peak, peak_reserved_bytes=None)
            for phase, peak in on_card.phases.items()
        ),
        breakdown=tuple(
            CategoryShare(category=category, size_bytes=size) for category, size in on_card.breakdown.items()
        ),
        message=_sentence(on_card, unlimited, gpu),
        **counts,
    )


def _out_of_memory(peaks: Peaks) -> OutOfMemory | None:
    if peaks.refusal is None:
        return None
    return OutOfMemory(phase=peaks.refusal.phase, requested_bytes=peaks.refusal.requested_bytes)


def _sentence(peaks: Peaks, unlimited: Peaks, gpu: Gpu) -> str:
    if peaks.refusal is None:
        return ""
    refusal = peaks.refusal
    return (
        f"Out of memory in {refusal.phase}: {gib_text(refusal.requested_bytes, 2)} asked for with "
        f"{gib_text(refusal.allocated_bytes, 2)} of {gib_text(gpu.memory_bytes, 2)} allocated; "
        f"{gib_text(unlimited.peak_allocated_bytes, 2)} would have been needed."
    )
