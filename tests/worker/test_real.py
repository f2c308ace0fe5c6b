"""Trials on hardware: the CPU for real, and what is read off a GPU by scripted counters."""

import pytest

from profiler.domain.builtin_models import BUILTIN_MODELS
from profiler.domain.memory import Phase
from profiler.domain.outcome import Status
from profiler.domain.trial import Backend, TrialSpec
from profiler.domain.units import GIB, MIB
from profiler.worker.real import requested_bytes, run_real


def test_the_cpu_trains_and_says_nothing_of_gpu_memory() -> None:
    spec = TrialSpec(backend=Backend.CPU, gpu=None, model="tiny", max_prompt_length=6, max_completion_length=8, steps=2)
    outcome = run_real(spec, BUILTIN_MODELS["tiny"].config)
    assert outcome.status is Status.OK
    assert outcome.steps_run == 2
    assert outcome.micro_batches_run == 8
    assert outcome.step_time_s is not None
    assert outcome.step_time_s > 0
    assert outcome.peak_allocated_bytes is None
    assert outcome.gpu_name is None
    assert {phase.phase for phase in outcome.phases} >= {Phase.LOAD, Phase.ROLLOUT, Phase.FORWARD, Phase.OPTIMIZER}
    assert all(phase.peak_allocated_bytes is None for phase in outcome.phases)


@pytest.mark.parametrize(
    ("message", "size"),
    [
        ("CUDA out of memory. Tried to allocate 1.90 GiB. GPU 0 has a total capacity of 15.73 GiB", int(1.9 * GIB)),
        ("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 ...", 20 * MIB),
        ("something else", None),
    ],
)
def test_the_request_is_read_from_torchs_message(message: str, size: int | None) -> None:
    assert requested_bytes(message) == size
