"""A trial on real hardware: on a CUDA device it is measured; on the CPU it only proves that the job runs."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from profiler.domain.cards.card import cuda_context_bytes
from profiler.domain.memory import Phase
from profiler.domain.runs.outcome import Outcome, Peaks, Status, Verdict, Work
from profiler.domain.runs.readings import PhasePeak
from profiler.domain.trials.trial import Backend, TrialSpec
from profiler.measurement.counters.torch_cuda import TorchCuda
from profiler.measurement.driver.pynvml_driver import PynvmlDriver
from profiler.training.placement import TrainingObserver
from profiler.training.run import PlainSession, run_training
from profiler.worker.cuda.card_decoding import CardDecoding
from profiler.worker.cuda.measured import SNAPSHOT_ENTRIES, Instruments, Measured, MeasuringTask, measure

Beat = Callable[[], None]
"""A sign of life, called from the training thread at each phase."""


@dataclass
class _PhaseLog:
    """An observer that keeps the phases in order."""

    phases: dict[Phase, None] = field(default_factory=dict)

    def enter(self, phase: Phase) -> None:
        self.phases[phase] = None

    def model_built(self, *, parameters: int, trainable: int) -> None:
        """Do nothing."""


@dataclass
class _Beating:
    """An observer that also gives signs of life."""

    inner: TrainingObserver
    beat: Beat

    def enter(self, phase: Phase) -> None:
        self.beat()
        self.inner.enter(phase)

    def model_built(self, *, parameters: int, trainable: int) -> None:
        self.beat()
        self.inner.model_built(parameters=parameters, trainable=trainable)


@dataclass(frozen=True, kw_only=True)
class _CardSession(PlainSession):
    """A session that may extrapolate decoding steps."""

    decoding: CardDecoding | None

    def decode_extrapolator(self) -> CardDecoding | None:
        """Return the extrapolator; None if every step runs."""
        return self.decoding

    def trainer_ready(self, trainer: Any) -> None:
        """Pass the size of the model on, and its heads to the extrapolator."""
        super().trainer_ready(trainer)
        if self.decoding is not None:
            self.decoding.attends_with(int(trainer.model.config.get_text_config().num_attention_heads))


def run_real(
    spec: TrialSpec,
    model_config: Mapping[str, Any],
    *,
    gpu_uuid: str | None = None,
    snapshot: bool = False,
    history_entries: int = SNAPSHOT_ENTRIES,
    sample_period_s: float | None = None,
    decoding: CardDecoding | None = None,
    beat: Beat = lambda: None,
) -> Measured:
    """Run the trial; on CUDA, measure its GPU memory.

    Args:
        spec: The trial.
        model_config: The fields of the model's `config.json`.
        gpu_uuid: The GPU as the sweep names it; None if the sweep chose none.
        snapshot: Whether a memory snapshot is taken.
        history_entries: Allocations and frees in the snapshot's history.
        sample_period_s: Seconds between samples of the driver; None takes none.
        decoding: Extrapolates decoding steps on an emulated card; None if they all run.
        beat: A sign of life, called at each phase.
    """
    started_s = time.monotonic()

    def train(observer: TrainingObserver, device: torch.device) -> Outcome:
        session = _CardSession(device=device, observer=_Beating(observer, beat), decoding=decoding)
        return _train(spec, model_config, session)

    if spec.backend is Backend.CPU:
        log = _PhaseLog()
        trained = train(log, torch.device("cpu"))
        phases = (PhasePeak(phase=phase, peak_allocated_bytes=None, peak_reserved_bytes=None) for phase in log.phases)
        return Measured(outcome=replace(trained, peaks=Peaks(phases=tuple(phases))))
    return measure(
        MeasuringTask(
            gpu=spec.gpu,
            alloc_conf=spec.alloc_conf,
            has_paged_states=spec.optim.traits.is_paged,
            gpu_uuid=gpu_uuid,
            snapshot=snapshot,
            live_name=f"{spec.recipe} {spec.model} {spec.tuning}" if spec.backend is Backend.CUDA else "",
            history_entries=history_entries,
            started_s=started_s,
        ),
        Instruments(
            cuda=TorchCuda(),
            nvml=PynvmlDriver(),
            assumed_context_bytes=cuda_context_bytes,
            sample_period_s=sample_period_s,
        ),
        lambda observer: train(observer, torch.device("cuda", 0)),
    )


def _train(spec: TrialSpec, model_config: Mapping[str, Any], session: PlainSession) -> Outcome:
    """Train, and return the outcome without the device's memory."""
    trained = run_training(spec, model_config, session)
    return Outcome(
        verdict=Verdict(status=Status.OK),
        work=Work(
            parameters=trained.parameters,
            trainable_parameters=trained.trainable_parameters,
            steps_run=trained.steps_run,
            micro_batches_run=trained.micro_batches_run,
            step_time_s=trained.train_s / max(1, trained.steps_run),
        ),
    )
