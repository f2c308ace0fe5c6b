"""Trials in real worker processes, with a scripted driver: slots, faults of a GPU, and implied trials."""

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from scripted import ScriptedNvml
from witness import Patient, Witness, is_gone, on_cuda, planned

from profiler.domain.errors import EXIT_GPU_UNUSABLE
from profiler.domain.memory import GIB
from profiler.domain.runs.outcome import Status
from profiler.execution import GpuPool, GpuUnusableError, Pruning, local_slots
from profiler.execution.processes import worker_process as worker_process_module


@pytest.fixture
def nvml():
    return ScriptedNvml()


@pytest.fixture
def gpus(tmp_path, nvml):
    def pool(*uuids, **more):
        return GpuPool(uuids or ("GPU-a",), nvml=nvml, lock_folder=tmp_path / "locks", **more)

    return pool


def _notes(folder: Path) -> list[list[str]]:
    return [line.split()[:2] for line in (folder / "notes.txt").read_text().splitlines()]


# ---- slots -----------------------------------------------------------------------------------------------------------


def test_one_trial_per_gpu_at_the_same_time(run, gpus, tmp_path):
    plan = [on_cuda(name, "notes_gpu") for name in "abcd"]
    witness = run(plan, jobs=4, gpus=gpus("GPU-a", "GPU-b"))

    assert {record.outcome.status for record in witness.records.values()} == {Status.OK}
    busy: dict[str, int] = {"GPU-a": 0, "GPU-b": 0}
    for word, _ in _notes(tmp_path):
        what, _, uuid = word.partition("-on-")
        busy[uuid] += 1 if what == "began" else -1
        assert busy[uuid] in (0, 1)
    under_way = [1 if what == "started" else -1 for what, _ in witness.calls]
    assert max(sum(under_way[:place]) for place in range(len(under_way))) == 2
    assert witness.given_up == ()


def test_trials_that_need_no_gpu_get_none_and_do_not_wait(run, gpus, tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    run([on_cuda("a", "notes_gpu"), planned("b", "notes_gpu")], jobs=2, gpus=gpus())

    assert sorted(_notes(tmp_path)[:2]) == [["began-on-GPU-a", "a"], ["began-on-None", "b"]]


def test_a_failed_trial_also_counts_its_gpu_time(run, gpus):
    witness = run([on_cuda("a", "raises"), planned("b", "raises")], gpus=gpus())

    assert witness.records["a"].outcome.work.gpu_s > 0
    assert witness.records["b"].outcome.work.gpu_s is None


# ---- two sweeps, one GPU (row 14) ------------------------------------------------------------------------------------

_HOLDER = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
from scripted import ScriptedNvml
from profiler.execution import GpuPool
pool = GpuPool(("GPU-a",), nvml=ScriptedNvml(), lock_folder=Path({locks!r}))
assert pool.take() is not None
print("held", flush=True)
input()
"""


def test_a_second_sweep_waits_for_the_gpu_until_its_holder_is_killed(run, gpus, tmp_path, monkeypatch):
    monkeypatch.setattr(local_slots, "POLL_S", 0.05)
    program = _HOLDER.format(path=sys.path, locks=str(tmp_path / "locks"))
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        pool = gpus()
        waited: list[bool] = []

        class Releasing(Witness):
            """Kills the holder after the trial that needs no GPU."""

            def finished(self, trial, record):
                super().finished(trial, record)
                if trial.trial_id == "b":
                    waited.append(pool.take() is None)
                    holder.kill()

        witness = run([on_cuda("a"), planned("b", "slow_ok")], jobs=2, gpus=pool, witness=Releasing())
    assert waited == [True]
    assert witness.calls[0] == ("started", "b")
    assert witness.records["a"].outcome.status is Status.OK


# ---- a GPU that is not empty, or breaks (rows 6 and 15) --------------------------------------------------------------


def test_a_sweep_whose_only_gpu_is_full_ends_with_33_and_the_reason(run, gpus, nvml, store, monkeypatch):
    monkeypatch.setattr(local_slots, "POLL_S", 0.05)
    nvml.used_bytes = 70 * GIB
    witness = Witness()
    with pytest.raises(GpuUnusableError, match=r"2 trials were not run.*other programs hold 70\.00 GiB") as raised:
        run([on_cuda("a"), on_cuda("b"), planned("c")], gpus=gpus(wait_for_empty_s=0.2), witness=witness)

    assert raised.value.exit_code == EXIT_GPU_UNUSABLE == 33
    assert list(witness.records) == ["c"]
    assert store.find("a") is None


def test_a_contended_trial_is_no_answer_and_runs_again(run, gpus, store):
    run([on_cuda("a", "contended")], gpus=gpus())
    assert store.find("a").outcome.status is Status.CONTENDED
    assert run([on_cuda("a", "ok")], gpus=gpus()).records["a"].outcome.status is Status.OK


def test_errors_of_the_gpu_override_the_record_and_the_trial_runs_on_another(run, tmp_path, store):
    class OneBroken(ScriptedNvml):
        """Each call finds one more error of GPU-bad."""

        def uncorrected_errors(self, uuid):
            self.errors += uuid == "GPU-bad"
            return self.errors if uuid == "GPU-bad" else 0

    pool = GpuPool(("GPU-bad", "GPU-good"), nvml=OneBroken(), lock_folder=tmp_path / "locks")
    witness = run([on_cuda(name, "notes_gpu") for name in "ab"], jobs=1, gpus=pool)

    began = [note for note in _notes(tmp_path) if note[0].startswith("began")]
    assert began == [["began-on-GPU-bad", "a"], ["began-on-GPU-good", "b"], ["began-on-GPU-good", "a"]]
    assert {record.outcome.status for record in witness.records.values()} == {Status.OK}
    assert [what for what, _ in witness.calls].count("finished") == 2
    assert "memory errors that could not be corrected" in witness.given_up[0]


def test_a_fault_that_the_worker_reports_also_retires_the_gpu(run, gpus, tmp_path):
    witness = run([on_cuda("a", "device_fault")], gpus=gpus("GPU-bad", "GPU-good"))

    assert [word for word, _ in _notes(tmp_path)] == ["ran-on-GPU-bad", "ran-on-GPU-good"]
    assert witness.records["a"].outcome.status is Status.OK
    assert witness.losses == ["a"]  # otherwise progress would show it as running for ever
    assert len(witness.given_up) == 1


def test_without_another_gpu_the_fault_is_stored_and_the_sweep_ends_with_33(run, gpus, store):
    with pytest.raises(GpuUnusableError, match="2 trials were not run: no GPU is left"):
        run([on_cuda("a", "device_fault"), on_cuda("b")], gpus=gpus("GPU-bad"))

    assert store.find("a").outcome.status is Status.DEVICE_FAULT
    assert store.find("b") is None


# ---- a worker that cannot be killed (row 9) --------------------------------------------------------------------------


def test_a_worker_that_cannot_be_killed_costs_its_gpu_and_not_the_sweep(run, gpus, tmp_path, monkeypatch):
    kill_group = os.killpg
    monkeypatch.setattr(worker_process_module, "GRACE_S", 0.2)
    monkeypatch.setattr(worker_process_module.os, "killpg", lambda pid, number: None)
    try:
        witness = run(
            [on_cuda("a", "cannot_be_killed"), on_cuda("b")],
            gpus=gpus("GPU-a", "GPU-b"),
            timeout_s=10.0,
            witness=Patient(tmp_path),
        )
        pid = int((tmp_path / "pids.txt").read_text())
        assert not is_gone(pid, within_s=0.2)
        assert witness.records["a"].outcome.status is Status.TIMEOUT
        assert "could not be killed" in witness.records["a"].outcome.message
        assert witness.records["b"].outcome.status is Status.OK
        assert "GPU GPU-a is not used any more: a worker that cannot be killed" in witness.given_up[0]
        # At exit Python waits for the children that it knows.
        assert pid not in [child.pid for child in multiprocessing.active_children()]
    finally:
        kill_group(int((tmp_path / "pids.txt").read_text()), signal.SIGKILL)


# ---- out of memory implies other trials -----------------------------------------------------------------------------


def longer(smaller, larger):
    return smaller.max_completion_length <= larger.max_completion_length


def test_a_trial_that_would_run_out_of_memory_is_implied_and_not_run(run, gpus, tmp_path, store):
    plan = [on_cuda(str(length), "runs_out", max_completion_length=length) for length in (64, 32, 128)]
    witness = run([plan[1], plan[0], plan[2]], gpus=gpus(), pruning=Pruning(needs_at_most=longer))

    assert [name for _, name in _notes(tmp_path)] == ["32"]
    assert witness.records["32"].outcome.status is Status.OOM
    for name in ("64", "128"):
        outcome = store.find(name).outcome
        assert (outcome.status, outcome.verdict.implied_by) == (Status.IMPLIED, "32")
        assert "trial 32" in outcome.message


def test_without_pruning_an_implied_trial_runs(run, gpus, tmp_path):
    plan = [on_cuda(str(length), "runs_out", max_completion_length=length) for length in (32, 64)]
    run(plan, gpus=gpus(), pruning=Pruning(needs_at_most=longer))
    witness = run(plan, gpus=gpus(), prune=False)

    assert [name for _, name in _notes(tmp_path)] == ["32", "64"]
    assert witness.records["64"].outcome.status is Status.OOM


def test_a_record_of_another_sweep_also_implies_trials(run, gpus, tmp_path):
    plan = [on_cuda(str(length), "runs_out", max_completion_length=length) for length in (32, 64)]
    run(plan[:1], gpus=gpus())
    witness = run(plan, gpus=gpus(), pruning=Pruning(needs_at_most=longer))

    assert [name for _, name in _notes(tmp_path)] == ["32"]
    assert witness.records["64"].outcome.verdict.implied_by == "32"


def test_trials_that_are_not_measured_are_never_implied(run, tmp_path):
    run([planned("a", "runs_out"), planned("b", "runs_out")], pruning=Pruning(needs_at_most=lambda *_: True))

    assert [name for _, name in _notes(tmp_path)] == ["a", "b"]


def test_a_trial_that_fits_implies_nothing(run, gpus, tmp_path):
    plan = [on_cuda("a", "ok"), on_cuda("b", "ok")]
    run(plan, gpus=gpus(), pruning=Pruning(needs_at_most=lambda *_: True))

    assert len(_notes(tmp_path)) == 2


def test_a_gpu_is_polled_once_for_all_waiting_trials(run, gpus, nvml):
    nvml.used_bytes = 70 * GIB
    with pytest.raises(GpuUnusableError):
        run([on_cuda(str(number)) for number in range(50)], gpus=gpus(wait_for_empty_s=1.0))
    # Not once per waiting trial.
    assert nvml.asked.count("memory") <= 10
