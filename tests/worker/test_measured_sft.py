"""The recipe `sft` on real hardware: trained on the CPU, and measured with a scripted card and driver."""

import pytest
import torch
from scripted import UUID, ScriptedCuda, ScriptedNvml

from profiler.domain.memory import GIB, Phase
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.runs.outcome import Status
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import Backend, TrialSpec
from profiler.training.placement import TrainingObserver
from profiler.training.run import PlainSession
from profiler.worker.cuda.real import run_real

CONFIG = BUILTIN_MODELS["tiny"].config
PHASES = [Phase.LOAD, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]


def sft(backend: Backend) -> TrialSpec:
    return TrialSpec(
        backend=backend,
        gpu=None,
        model="tiny",
        recipe=Recipe.SFT,
        max_length=12,
        gradient_accumulation_steps=2,
        steps=2,
    )


class Allocating:
    """An observer for a real trainer on the CPU: 2 GiB of weights on the card, and 1 GiB more in each backward."""

    def __init__(self, cuda: ScriptedCuda, inner: TrainingObserver) -> None:
        self.cuda, self.inner = cuda, inner

    def enter(self, phase: Phase) -> None:
        self.inner.enter(phase)
        if phase is Phase.BACKWARD:
            self.cuda.allocate(GIB)
            self.cuda.free(GIB)

    def model_built(self, *, parameters: int, trainable: int) -> None:
        self.cuda.allocate(2 * GIB)
        self.inner.model_built(parameters=parameters, trainable=trainable)


def test_the_cpu_trains_and_reports_the_phases_of_the_recipe() -> None:
    outcome = run_real(sft(Backend.CPU), CONFIG).outcome
    assert (outcome.status, outcome.work.steps_run, outcome.work.micro_batches_run) == (Status.OK, 2, 4)
    assert [phase.phase for phase in outcome.peaks.phases] == PHASES


def test_a_measured_trial_has_the_peaks_of_the_phases_of_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = ScriptedCuda()

    def on_the_cpu(*, device: torch.device, observer: TrainingObserver, decoding: None) -> PlainSession:
        assert device == torch.device("cuda", 0)
        return PlainSession(device=torch.device("cpu"), observer=Allocating(cuda, observer))

    monkeypatch.setattr("profiler.worker.cuda.real.TorchCuda", lambda: cuda)
    monkeypatch.setattr(
        "profiler.worker.cuda.real.PynvmlDriver", lambda: ScriptedNvml(used_bytes=cuda.used_bytes, listed=lambda: ())
    )
    monkeypatch.setattr("profiler.worker.cuda.real._CardSession", on_the_cpu)
    outcome = run_real(sft(Backend.CUDA), CONFIG, gpu_uuid=UUID).outcome
    assert outcome.status is Status.OK
    assert (outcome.peaks.allocated_bytes, outcome.peaks.phase) == (3 * GIB, Phase.BACKWARD)
    peaks = {peak.phase: peak.peak_allocated_bytes for peak in outcome.peaks.phases}
    assert list(peaks) == PHASES
    assert (peaks[Phase.FORWARD], peaks[Phase.OPTIMIZER]) == (2 * GIB, 2 * GIB)
    assert (outcome.work.steps_run, outcome.work.micro_batches_run) == (2, 4)
