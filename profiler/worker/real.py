"""A trial on hardware that is there: a CUDA device, measured, or the CPU, where only the job itself is proven."""

import re
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from profiler.domain.gpu import KNOWN_GPUS
from profiler.domain.memory import Phase
from profiler.domain.outcome import Outcome, OutOfMemory, PhasePeak, Status
from profiler.domain.trial import Backend, TrialSpec
from profiler.domain.units import GIB, KIB, MIB, gib_text
from profiler.measurement.phase_counters import PhaseCounters, TorchCudaCounters
from profiler.training.job import build_trainer
from profiler.training.phases import PhaseObserver
from profiler.training.placement import RealDevice
from profiler.training.sizes import parameter_counts


@dataclass
class _PhaseLog:
    """An observer for the CPU: it only remembers which phases there were."""

    phases: dict[Phase, None] = field(default_factory=dict)

    def enter(self, phase: Phase) -> None:
        self.phases[phase] = None


def run_real(spec: TrialSpec, model_config: Mapping[str, Any]) -> Outcome:
    """Run the trial and measure what there is to measure: GPU memory on CUDA, none on the CPU."""
    if spec.backend is Backend.CPU:
        return _run_on_cpu(spec, model_config)
    return _run_on_cuda(spec, model_config)


def _run_on_cpu(spec: TrialSpec, model_config: Mapping[str, Any]) -> Outcome:
    log = _PhaseLog()
    trained = _train(spec, model_config, log, torch.device("cpu"))
    phases = (PhasePeak(phase=phase, peak_allocated_bytes=None, peak_reserved_bytes=None) for phase in log.phases)
    return replace(trained, phases=tuple(phases))


def _run_on_cuda(spec: TrialSpec, model_config: Mapping[str, Any]) -> Outcome:
    if spec.alloc_conf:
        torch.cuda.memory._set_allocator_settings(spec.alloc_conf)
    gpu_name, gpu_memory_bytes = _card(spec)
    observer = PhaseCounters(TorchCudaCounters())
    try:
        outcome = _train(spec, model_config, observer, torch.device("cuda", 0))
    except torch.OutOfMemoryError as error:
        oom = OutOfMemory(phase=observer.phase or Phase.LOAD, requested_bytes=requested_bytes(str(error)))
        outcome = Outcome(status=Status.OOM, oom=oom, message=str(error))
    observer.read()
    return _with_peaks(replace(outcome, gpu_name=gpu_name, gpu_memory_bytes=gpu_memory_bytes), observer.peaks())


def _card(spec: TrialSpec) -> tuple[str, int]:
    """Name and memory of the card, capped to a smaller one's memory if the specification names one."""
    properties = torch.cuda.get_device_properties(0)
    if spec.gpu is None:
        return properties.name, properties.total_memory
    cap = KNOWN_GPUS[spec.gpu].memory_bytes
    if cap >= properties.total_memory:
        return properties.name, properties.total_memory
    torch.cuda.set_per_process_memory_fraction(cap / properties.total_memory)
    return f"{properties.name} capped to {gib_text(cap, 2)}", cap


def _train(spec: TrialSpec, model_config: Mapping[str, Any], observer: PhaseObserver, device: torch.device) -> Outcome:
    """Train; the outcome but for what the device's memory has to say."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = build_trainer(
            spec,
            model_config=model_config,
            placement=RealDevice(device=device),
            observer=observer,
            output_dir=Path(folder),
        )
        parameters, trainable = parameter_counts(trainer.model)
        started = time.monotonic()
        trainer.train()
        train_s = time.monotonic() - started
    steps = int(trainer.state.global_step)
    return Outcome(
        status=Status.OK,
        parameters=parameters,
        trainable_parameters=trainable,
        steps_run=steps,
        micro_batches_run=trainer.micro_batches_run,
        step_time_s=train_s / max(1, steps),
    )


def _with_peaks(outcome: Outcome, peaks: tuple[PhasePeak, ...]) -> Outcome:
    highest = max(peaks, key=lambda peak: peak.peak_allocated_bytes or 0)
    return replace(
        outcome,
        phases=peaks,
        peak_allocated_bytes=highest.peak_allocated_bytes,
        peak_phase=highest.phase,
        peak_reserved_bytes=max(peak.peak_reserved_bytes or 0 for peak in peaks),
    )


_REQUEST = re.compile(r"Tried to allocate ([\d.]+) (GiB|MiB|KiB|bytes)")
_UNITS = {"GiB": GIB, "MiB": MIB, "KiB": KIB, "bytes": 1}


def requested_bytes(message: str) -> int | None:
    """The size asked for in torch's out-of-memory message, rounded as it prints it; None if it does not say."""
    found = _REQUEST.search(message)
    return None if found is None else int(float(found[1]) * _UNITS[found[2]])
