"""How many trials run at the same time."""

import os
from dataclasses import replace

import pytest
from witness import on_cuda, planned

from profiler.domain.trials.trial import Backend
from profiler.execution.runner import jobs_for

ON_CPU, MEASURED = planned("a"), on_cuda("b")
SIMULATED = replace(ON_CPU, spec=replace(ON_CPU.spec, backend=Backend.SIMULATED, gpu="h100-80gb"))


@pytest.mark.parametrize(
    ("plan", "gpus", "jobs"),
    [
        ([SIMULATED], 2, len(os.sched_getaffinity(0))),
        ([MEASURED], 2, 2),
        ([MEASURED], 0, 1),
        ([ON_CPU], 2, 1),
        ([MEASURED, SIMULATED], 2, 1),
    ],
)
def test_null_is_one_per_core_if_simulated_one_per_gpu_if_measured_otherwise_one(plan, gpus, jobs):
    assert jobs_for(plan, None, gpus=gpus) == jobs
    assert jobs_for(plan, 7, gpus=gpus) == 7
