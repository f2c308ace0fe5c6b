"""A trial on real hardware: the CPU."""

from profiler.domain.memory import Phase
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.runs.outcome import Status
from profiler.domain.trials.trial import Backend, TrialSpec
from profiler.worker.cuda.real import run_real


def test_the_cpu_trains_and_reports_no_gpu_memory() -> None:
    spec = TrialSpec(backend=Backend.CPU, gpu=None, model="tiny", max_prompt_length=6, max_completion_length=8, steps=2)
    beats: list[None] = []
    measured = run_real(spec, BUILTIN_MODELS["tiny"].config, beat=lambda: beats.append(None))
    outcome = measured.outcome
    # A sign of life at each phase, and when the model is built.
    assert len(beats) > 2 * (spec.gradient_accumulation_steps * 2)
    assert (measured.samples, measured.snapshot) == ((), None)
    assert outcome.status is Status.OK
    assert outcome.work.steps_run == 2
    assert outcome.work.micro_batches_run == 8
    assert outcome.work.step_time_s is not None
    assert outcome.work.step_time_s > 0
    assert outcome.peaks.allocated_bytes is None
    assert outcome.card.name is None
    assert {phase.phase for phase in outcome.peaks.phases} >= {
        Phase.LOAD,
        Phase.ROLLOUT,
        Phase.FORWARD,
        Phase.OPTIMIZER,
    }
    assert all(phase.peak_allocated_bytes is None for phase in outcome.peaks.phases)
