"""Slots by submitit's own executors: processes of this machine that are killed, and one in this process."""

import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from profiler.cluster.arrays.array import SlotArray, SlotState, read_report
from profiler.cluster.arrays.slurm import SlotJob
from profiler.domain.machines.engines import SlurmGpus
from profiler.domain.runs.outcome import Status, Versions
from profiler.storage.records.versioned import installed_versions
from profiler.storage.stores.objects import FolderObjects
from profiler.sweep import slot
from profiler.sweep.main import main
from profiler.sweep.parts import SweepParts

submitit = pytest.importorskip("submitit", reason="submitit is an extra: pip install 'grpo-vram[slurm]'")

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "stress"), str(HERE.parent / "sweep")]
WORDS = ("+grid=lora_vs_full", "backend=simulated", "model=qwen2.5-0.5b", "tuning=full", "optim=adamw_torch")
WORDS = (*WORDS, "gradient_checkpointing=false")
MARK = "GRPO_VRAM_PROFILER_TEST_MARK"


class LocalJobs:
    """Slots as processes of this machine."""

    def __init__(self, folder, function):
        self.executor, self.function, self.jobs = submitit.LocalExecutor(folder=folder / "jobs"), function, []
        self.executor.update_parameters(timeout_min=5)

    def submit(self, count):
        found = [self.executor.submit(self.function) for _ in range(count)]
        self.jobs += found
        return [job.job_id for job in found]

    def queued(self):
        return {job.job_id: True for job in self.jobs if job.state == "RUNNING"}

    def cancel(self, *, waiting_only=False):
        if not waiting_only:
            for job in self.jobs:
                job.cancel()

    def forget(self):
        """Leave the logs to the test."""


@pytest.fixture
def environment(monkeypatch, tmp_path):
    """The environment of the slots, with a mark by which their processes are found."""
    import shared_machine

    path = os.pathsep.join([str(HERE.parent / "stress"), os.environ.get("PYTHONPATH", "")])
    notes = tmp_path / "notes.txt"
    notes.touch()
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("GRPO_VRAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(shared_machine.NOTES, str(notes))
    monkeypatch.setenv(shared_machine.STORE, f"file://{tmp_path}/mounted/lora_vs_full")
    monkeypatch.setenv(MARK, str(tmp_path))
    return notes


def marked(tmp_path):
    found = []
    for each in psutil.process_iter():
        try:
            if each.pid != os.getpid() and each.environ().get(MARK) == str(tmp_path):
                found.append(each)
        except psutil.Error:
            continue
    return found


def is_slot(process):
    try:
        return "submitit.core._submit" in process.cmdline()
    except psutil.Error:
        return False


def killed_within_a_trial(slot, store, notes):
    """Kill a slot if it runs a trial now, and return whether it did.

    Between the end of a trial and its publication a kill lets it run once more, and between publication and the end of
    the claim it leaves the claim until that has run out.
    """
    processes = [slot, *slot.children(recursive=True)]
    for each in processes:
        each.suspend()
    claims = {name: json.loads(content) for name, content in store.read_many(store.list("claims/")).items()}
    own = [name.split("/")[1].split(".")[0] for name, claim in claims.items() if claim["pid"] == slot.pid]
    ended = notes.read_text() + str(store.list("records/"))
    runs = len(processes) > 1 and bool(own) and not any(trial_id in ended for trial_id in own)
    for each in processes:
        with suppress(psutil.Error):
            each.kill() if runs else each.resume()
    return runs


@pytest.mark.slow
def test_slots_that_are_killed_lose_nothing_run_nothing_twice_and_leave_nothing(
    environment, tmp_path, capfd, monkeypatch
):
    import shared_machine

    gate = tmp_path / "killed"
    monkeypatch.setenv(shared_machine.GATE, str(gate))
    killed, store = [], FolderObjects(tmp_path / "mounted" / "lora_vs_full")

    class Killing(FolderObjects):
        """Kills a slot within a trial, when both slots have reported their start and a trial has ended."""

        def list(self, prefix):
            slots = [each for each in marked(tmp_path) if is_slot(each)]
            if len(killed) < 1 and len(slots) == 2 and environment.read_text():
                killed.extend(each.pid for each in slots[:1] if killed_within_a_trial(each, store, environment))
                if killed:
                    gate.touch()
            return super().list(prefix)

    def open_array(base, job_in, options, key):
        jobs, reports = LocalJobs(base, job_in(base)), Killing(base)
        return SlotArray(jobs=jobs, reports=reports, place=str(base), poll_s=0.1, lost_after_s=0.5)

    parts = SweepParts(
        reach=lambda options: None,
        open_array=open_array,
        slot="shared_machine:slot",
        write_tables=SweepParts().write_tables,
        render_folder=lambda folder, **how: None,
    )
    code = main(
        [*WORDS, "seed=range(1,9)", "engine=slurm", "jobs=2", "lease_s=15", f"results_dir={tmp_path}/mounted"],
        parts=parts,
    )
    said = capfd.readouterr()
    assert code == 0, said.err
    assert len(killed) == 1
    lines = environment.read_text().splitlines()
    runs = [line.split()[1] for line in lines]
    assert len(set(runs)) == 8
    assert [line for line in lines if line.startswith(shared_machine.AGAIN)] == []
    assert len(runs) == 8
    assert len(store.list("records/")) == 8
    assert list(store.list("claims/")) == []
    assert "1 slot was lost and replaced" in said.err
    until_s = time.monotonic() + 60
    while marked(tmp_path) and time.monotonic() < until_s:
        time.sleep(0.1)
    assert marked(tmp_path) == []


# ---- one slot, in this process ---------------------------------------------------------------------------------------


def run_here(job: SlotJob) -> None:
    """Run a slot with the fakes of a sweep."""
    from test_shared_sweep import Machine

    slot.run(job, Machine().parts(installed_versions=installed_versions))


def run_failing(job: SlotJob) -> None:
    """Run a slot whose trials fail."""
    from test_shared_sweep import Machine

    machine = Machine(statuses={"qwen2.5-0.5b": Status.FAILED})
    slot.run(job, machine.parts(installed_versions=installed_versions))


def run_until_the_limit(job: SlotJob) -> None:
    """Run a slot whose time limit ends while Hydra composes the plan, which takes submitit's error for its own."""

    def stopped(*_: object, **__: object) -> None:
        job.checkpoint()
        raise RuntimeError("Job not requeued because: checkpoint function returned None.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hydra.compose", stopped)
        run_here(job)


def debug_run(tmp_path, words=(), versions=None, gpus=None, *, trial_versions=None, target="run_here", array="array"):
    """Run a slot by submitit's debug executor, and return its report with the number of records."""
    folder = tmp_path / array
    job = SlotJob(
        target=f"{__name__}:{target}",
        words=(*WORDS, f"results_dir=file://{tmp_path}/mounted", *words),
        versions=versions or installed_versions(),
        trial_versions=trial_versions or installed_versions(),
        folder=str(folder),
        gpus=gpus,
    )
    submitted = submitit.DebugExecutor(folder=folder / "jobs").submit(job)
    try:
        submitted.submission().result()
    except Exception as error:
        assert any(word in str(error) for word in ("engine", "slurm", "Job not requeued"))
    (name,) = FolderObjects(folder).list("slots/")
    report = read_report(FolderObjects(folder).read(name))
    return report, len(FolderObjects(tmp_path / "mounted" / "lora_vs_full").list("records/"))


@pytest.fixture
def in_this_process(monkeypatch, tmp_path):
    monkeypatch.setenv("SUBMITIT_DEBUG_JOB_ID", "DEBUG_1")
    monkeypatch.setenv("GRPO_VRAM_CACHE", str(tmp_path / "cache"))


def test_a_slot_runs_the_plan_and_reports_its_end(in_this_process, tmp_path):
    report, stored = debug_run(tmp_path)
    assert (report.state, report.code, report.problem) == (SlotState.ENDED, 0, "")
    assert stored == 1


def test_a_slot_with_other_versions_refuses_before_its_first_trial(in_this_process, tmp_path):
    other = Versions(torch="1", trl="2", transformers=None, peft=None, bitsandbytes=None, profiler="0")
    report, stored = debug_run(tmp_path, versions=other)
    assert (report.state, report.code, stored) == (SlotState.ENDED, 2, 0)
    assert "trl" in report.problem
    assert "where the command was started it is" in report.problem


def test_a_slot_whose_python_has_other_versions_refuses_before_its_first_trial(in_this_process, tmp_path):
    other = replace(installed_versions(), trl="2")
    words = (f"python={sys.prefix}",)
    report, stored = debug_run(tmp_path, words, trial_versions=other)
    assert (report.code, stored) == (2, 0)
    assert "where the command was started it is trl 2" in report.problem
    assert debug_run(tmp_path, words, array="again")[1] == 1


def test_what_failed_on_one_slot_runs_on_no_other_of_the_array(in_this_process, tmp_path):
    records = FolderObjects(tmp_path / "mounted" / "lora_vs_full")
    assert debug_run(tmp_path, target="run_failing")[0].code == 0
    (failed,) = records.list("records/").items()
    assert debug_run(tmp_path, target="run_here")[0].code == 0
    assert list(records.list("records/").items()) == [failed]
    assert debug_run(tmp_path, target="run_here", array="of the next command")[0].code == 0
    assert list(records.list("records/").items()) != [failed]


def test_a_slot_that_asked_for_gpus_refuses_a_node_that_shows_none(in_this_process, tmp_path):
    report, stored = debug_run(tmp_path, gpus=SlurmGpus(kind="", count=1))
    assert (report.code, stored) == (2, 0)
    assert "slurm_gpus_per_node=1: node " in report.problem
    assert "shows none (there is none in this test)" in report.problem


def test_a_time_limit_before_the_plan_is_known_does_not_end_the_other_slots(in_this_process, tmp_path):
    report, stored = debug_run(tmp_path, target="run_until_the_limit")
    assert (report.state, report.code, stored) == (SlotState.ENDED, 70, 0)
    assert report.problem == "The time limit of the slot ended before its first trial. Raise slurm_time."


def test_a_slot_is_requeued_at_its_time_limit_if_it_has_finished_a_trial():
    job = SlotJob(
        target="a:b",
        words=(),
        versions=installed_versions(),
        trial_versions=installed_versions(),
        folder="/x",
        gpus=None,
    )
    assert job.checkpoint() is None
    assert job.problem == "The time limit of the slot ended before its first trial. Raise slurm_time."
    job.finished = 1
    assert job.checkpoint().function is job
