"""The outcome of a script on a simulated card."""

from dataclasses import replace
from pathlib import Path

import pytest

from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.memory import GIB, Phase
from profiler.domain.runs.other_runs import ScriptJob, ScriptSpec
from profiler.domain.runs.outcome import Status, Versions
from profiler.domain.trials.trial import Backend
from profiler.worker.scripts.script import ScriptRun
from profiler.worker.scripts.simulated_script import simulated_outcome

LOOP = """\
import torch
layer = torch.nn.Linear(4, 4).to("cuda")
optimizer = torch.optim.SGD(layer.parameters())
for _ in range(9):
    layer(torch.ones(2, 4, device="cuda")).sum().backward()
    optimizer.step()
"""


def job(folder: Path, text: str) -> ScriptJob:
    script = folder / "train.py"
    script.write_text(text)
    versions = Versions(torch=None, trl=None, transformers=None, peft=None, bitsandbytes=None, profiler="0")
    return ScriptJob(
        run_id="a1",
        spec=ScriptSpec(script=str(script), backend=Backend.SIMULATED, gpu="rtx-4090-24gb", steps=2),
        script_sha256="",
        versions=versions,
        folder=str(folder),
    )


def test_a_loop_ends_after_its_steps_with_peaks_by_phase(tmp_path: Path) -> None:
    run = ScriptRun(job(tmp_path, LOOP))
    found = simulated_outcome(run.job, run.run)
    assert found.verdict.status is Status.OK
    assert (found.work.steps_run, found.work.micro_batches_run, found.work.parameters) == (2, 2, 20)
    assert [peak.phase for peak in found.peaks.phases] == [Phase.LOAD, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
    assert run.ending is not None
    assert run.ending.by_steps


def test_a_card_that_is_full_is_found_where_it_fails_first(tmp_path: Path) -> None:
    """The script goes on, as it does not know; what it does afterwards does not count."""
    made = "torch.empty(10 << 30, dtype=torch.uint8, device='cuda')"
    text = f"import torch\nrows = [{made} for _ in range(4)]\nraise OSError"
    run = ScriptRun(job(tmp_path, text))
    found = simulated_outcome(run.job, run.run)
    assert found.verdict.status is Status.OOM
    assert found.verdict.oom is not None
    assert found.verdict.oom.requested_bytes == 10 * GIB
    assert found.peaks.allocated_bytes == 20 * GIB


def test_an_error_of_the_script_keeps_its_peaks(tmp_path: Path) -> None:
    run = ScriptRun(job(tmp_path, "import torch\nx = torch.empty(1024, device='cuda')\nraise OSError('no')"))
    found = simulated_outcome(run.job, run.run)
    assert (found.verdict.status, found.peaks.allocated_bytes) == (Status.FAILED, 4096)
    assert "OSError: no" in found.verdict.message


def test_a_script_without_a_card_says_so(tmp_path: Path) -> None:
    run = ScriptRun(job(tmp_path, "print(1)"))
    found = simulated_outcome(run.job, run.run)
    assert found.peaks.allocated_bytes is None
    assert "the script put nothing there" in found.verdict.unavailable


def test_several_processes_are_refused(tmp_path: Path) -> None:
    one = job(tmp_path, "")
    run = ScriptRun(replace(one, spec=replace(one.spec, num_processes=2)))
    with pytest.raises(UnsupportedTrialError, match="2 processes are not simulated"):
        simulated_outcome(run.job, run.run)
