"""A sweep that waits says for what, once."""

import pytest
from scripted import ScriptedNvml
from witness import Witness, on_cuda, planned

from profiler.domain.memory import GIB
from profiler.domain.runs.outcome import Status
from profiler.execution import GpuPool, local_slots
from profiler.storage.files.trial_files import take_lock


class Releasing(Witness):
    """Ends the cause of the wait when the sweep waits."""

    def __init__(self, release):
        super().__init__()
        self._release = release

    def waiting(self, reason):
        super().waiting(reason)
        self._release()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(local_slots, "POLL_S", 0.05)


def test_a_trial_of_another_sweep_is_waited_for_with_a_word(run, store):
    lock = take_lock(store.path("a").with_suffix(".lock"), wait=False)
    witness = run([planned("a")], witness=Releasing(lock.release))
    assert witness.waits == ["Waiting for ok of tiny: another sweep runs it in this folder."]
    assert witness.records["a"].outcome.status is Status.OK


def test_a_gpu_of_another_sweep_is_waited_for_with_a_word(run, tmp_path):
    path = tmp_path / "grpo-vram-profiler.GPU-a.lock"
    lock = take_lock(path, wait=False)
    pool = GpuPool(("GPU-a",), nvml=ScriptedNvml(), lock_folder=tmp_path)
    witness = run([on_cuda("a")], gpus=pool, witness=Releasing(lock.release))
    assert witness.waits == [f"Waiting for GPU GPU-a: another sweep measures on it and holds {path}."]
    assert witness.records["a"].outcome.status is Status.OK


def test_a_gpu_that_is_not_empty_is_waited_for_with_one_word(run, tmp_path):
    polls = []

    class Filled(ScriptedNvml):
        """Empty after a few polls."""

        def memory(self, uuid):
            polls.append(uuid)
            self.used_bytes = 7 * GIB if len(polls) < 5 else 0
            return super().memory(uuid)

    pool = GpuPool(("GPU-a",), nvml=Filled(), lock_folder=tmp_path)
    witness = run([on_cuda("a")], gpus=pool)
    assert [line.partition(":")[0] for line in witness.waits] == ["Waiting for GPU GPU-a"]
    assert witness.records["a"].outcome.status is Status.OK
