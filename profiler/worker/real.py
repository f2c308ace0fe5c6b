"""A trial on hardware that is there: a CUDA device, measured, or the CPU, where only the job itself is proven."""

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from profiler.domain.context import cuda_context_bytes
from profiler.domain.memory import Phase
from profiler.domain.outcome import Outcome, PhasePeak, Status
from profiler.domain.trial import Backend, TrialSpec
from profiler.measurement.pynvml_driver import PynvmlDriver
from profiler.measurement.torch_cuda import TorchCuda
from profiler.training.job import build_trainer
from profiler.training.placement import RealDevice
from profiler.training.sizes import parameter_counts
from profiler.worker.measured import SNAPSHOT_ENTRIES, Instruments, Measured, MeasuringTask, TrialObserver, measure

Beat = Callable[[], None]
"""Called from the training thread at each phase: the trial gets on."""


@dataclass
class _PhaseLog:
    """An observer for the CPU: it only remembers which phases there were."""

    phases: dict[Phase, None] = field(default_factory=dict)

    def enter(self, phase: Phase) -> None:
        self.phases[phase] = None

    def model_built(self, *, parameters: int, trainable: int) -> None:
        """Nothing to remember."""


@dataclass
class _Beating:
    """An observer that also gives a sign of life."""

    inner: TrialObserver
    beat: Beat

    def enter(self, phase: Phase) -> None:
        self.beat()
        self.inner.enter(phase)

    def model_built(self, *, parameters: int, trainable: int) -> None:
        self.beat()
        self.inner.model_built(parameters=parameters, trainable=trainable)


def run_real(
    spec: TrialSpec,
    model_config: Mapping[str, Any],
    *,
    gpu_uuid: str | None = None,
    snapshot: bool = False,
    history_entries: int = SNAPSHOT_ENTRIES,
    sample_period_s: float | None = None,
    beat: Beat = lambda: None,
) -> Measured:
    """Run the trial and measure what there is to measure: GPU memory on CUDA, none on the CPU."""
    started_s = time.monotonic()

    def train(observer: TrialObserver, device: torch.device) -> Outcome:
        return _train(spec, model_config, _Beating(observer, beat), device)

    if spec.backend is Backend.CPU:
        log = _PhaseLog()
        trained = train(log, torch.device("cpu"))
        phases = (PhasePeak(phase=phase, peak_allocated_bytes=None, peak_reserved_bytes=None) for phase in log.phases)
        return Measured(outcome=replace(trained, phases=tuple(phases)))
    return measure(
        MeasuringTask(
            spec=spec, gpu_uuid=gpu_uuid, snapshot=snapshot, history_entries=history_entries, started_s=started_s
        ),
        Instruments(
            cuda=TorchCuda(),
            nvml=PynvmlDriver(),
            assumed_context_bytes=cuda_context_bytes,
            sample_period_s=sample_period_s,
        ),
        lambda observer: train(observer, torch.device("cuda", 0)),
    )


def _train(spec: TrialSpec, model_config: Mapping[str, Any], observer: TrialObserver, device: torch.device) -> Outcome:
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
        observer.model_built(parameters=parameters, trainable=trainable)
        started_s = time.monotonic()
        trainer.train()
        train_s = time.monotonic() - started_s
    steps = int(trainer.state.global_step)
    return Outcome(
        status=Status.OK,
        parameters=parameters,
        trainable_parameters=trainable,
        steps_run=steps,
        micro_batches_run=trainer.micro_batches_run,
        step_time_s=train_s / max(1, steps),
    )
