import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from witness import Patient, Witness, is_gone, noted_pids, planned, wait_until

from profiler.domain.errors import EXIT_INTERNAL, EXIT_TOO_MANY_FAILURES
from profiler.domain.runs.outcome import Status
from profiler.execution import TooManyFailuresError
from profiler.execution.local_slots import LocalSlots, UnfitWorkersError
from profiler.execution.processes import worker_process as worker_process_module


def _notes(folder: Path, word: str) -> list[str]:
    return [line.split()[1] for line in (folder / "notes.txt").read_text().splitlines() if line.startswith(word)]


@pytest.mark.parametrize(
    ("label", "status", "words"),
    [
        ("ok", Status.OK, ("by the worker",)),
        ("no_record", Status.FAILED, ("exit code 0", "no record")),
        (
            "raises",
            Status.FAILED,
            ("exit code 70", "Unforeseen RuntimeError: the reason it failed. The full text is in"),
        ),
        ("exits_with_3", Status.FAILED, ("exit code 3", "some last words")),
        ("exits_hard", Status.FAILED, ("exit code 4", "hard words")),
        ("segfaults", Status.FAILED, ("SIGSEGV", "Fatal Python error: Segmentation fault", "string_at")),
        ("killed", Status.KILLED, ("SIGKILL",)),
        ("host_out_of_memory", Status.HOST_OOM, ("MemoryError",)),
        ("ok_then_segfault", Status.OOM, ("by the worker",)),
        ("no_such_function", Status.FAILED, ("Unforeseen KeyError",)),
    ],
)
def test_the_end_of_a_worker_decides_the_record(run, store, label, status, words):
    witness = run([planned("a", label), planned("b", "ok")])

    record = witness.records["a"]
    assert record.outcome.status is status
    for word in words:
        assert word in record.outcome.message
    assert record == store.find("a")
    assert witness.records["b"].outcome.status is Status.OK


def test_the_observer_is_called_for_each_trial_in_order(run):
    witness = run([planned("a"), planned("b", "raises"), planned("c")])

    assert witness.calls == [(what, which) for which in "abc" for what in ("started", "finished")]


def test_two_at_once_and_never_more(run):
    witness = run([planned(name, "slow_ok") for name in "abcd"], jobs=2)

    under_way = 0
    most = 0
    for what, _ in witness.calls:
        under_way += 1 if what == "started" else -1
        most = max(most, under_way)
    assert most == 2
    assert len(witness.records) == 4


def test_each_worker_is_a_process_of_its_own_that_did_not_import_the_main_module(run, store):
    witness = run([planned("a"), planned("b", "exits_with_3")])

    assert witness.records["a"].outcome.peaks.allocated_bytes != os.getpid()
    assert "main module" not in witness.records["b"].outcome.message
    assert not store.path("a").with_suffix(".stderr").exists()
    assert store.path("b").with_suffix(".stderr").exists()


def test_a_hanging_worker_is_ended_with_its_children_though_it_ignores_sigterm(run, store, monkeypatch, tmp_path):
    monkeypatch.setattr(worker_process_module, "GRACE_S", 0.3)
    witness = run([planned("a", "hangs_with_grandchildren")], timeout_s=0.1, witness=Patient(tmp_path))
    run([planned("b")], witness=witness)

    assert witness.records["a"].outcome.status is Status.TIMEOUT
    # It was SIGKILLed, and not given up.
    assert witness.records["a"].outcome.message == "The worker had not ended after 0.1 s."
    assert witness.records["b"].outcome.status is Status.OK
    assert all(is_gone(pid) for pid in noted_pids(tmp_path))


def test_a_worker_that_is_killed_while_it_writes_leaves_nothing_half_written(run, store, tmp_path):
    witness = run([planned("a", "dies_while_writing"), planned("b")])

    assert witness.records["a"].outcome.status is Status.KILLED
    assert not list(tmp_path.rglob("*.part"))
    assert [record.trial_id for record in store.read_all()] == ["a", "b"]


def test_an_interrupted_sweep_leaves_nothing_half_written(run, tmp_path):
    class Interrupted(Witness):
        def started(self, trial):
            wait_until(lambda: bool(noted_pids(tmp_path)))
            assert list(tmp_path.rglob("*.part"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run([planned("a", "hangs_while_writing")], witness=Interrupted())

    assert not list(tmp_path.rglob("*.part"))


def test_a_grandchild_does_not_outlive_a_worker_that_ended_well(run, store, tmp_path):
    run([planned("a", "leaves_a_grandchild")])

    assert is_gone(int((tmp_path / "pids.txt").read_text()))


def test_a_trial_with_an_answer_does_not_run_again_and_a_failed_one_does(run, store, tmp_path):
    run([planned("a"), planned("b", "raises")])
    witness = run([planned("a"), planned("b", "ok")])

    assert witness.calls == [("finished", "a"), ("started", "b"), ("finished", "b")]
    assert witness.records["b"].outcome.status is Status.OK
    assert _notes(tmp_path, "ran") == ["a", "b"]


def test_the_claim_on_a_trial_is_released_with_its_worker(run, store, monkeypatch):
    """A claim in a shared store is renewed as long as it is held; that its value is forgotten does not release it."""
    held = set()

    def claim(trial_id, *, wait):
        held.add(trial_id)
        return SimpleNamespace(release=lambda: held.remove(trial_id))

    monkeypatch.setattr(store, "claim", claim)
    witness = run([planned("a"), planned("b", "killed")])
    assert len(witness.records) == 2
    assert held == set()


def test_without_resume_all_run_again_and_an_old_record_is_not_taken_for_a_new_one(run, store):
    run([planned("a")])
    witness = run([planned("a", "raises")], resume=False)

    assert witness.records["a"].outcome.status is Status.FAILED


def test_too_many_failures_in_a_row_stop_the_sweep_with_the_reason(run):
    witness = Witness()
    plan = [planned("ok"), *(planned(f"bad{number}", "raises") for number in range(9))]

    with pytest.raises(TooManyFailuresError, match="the reason it failed") as raised:
        run(plan, witness=witness)

    assert raised.value.exit_code == EXIT_TOO_MANY_FAILURES
    assert "\n" not in str(raised.value)
    assert list(witness.records) == ["ok", "bad0", "bad1", "bad2", "bad3", "bad4"]


def test_failures_with_answers_between_them_do_not_stop_the_sweep(run):
    plan = [planned(f"{number}", "ok" if number % 3 == 2 else "killed") for number in range(9)]

    assert len(run(plan).records) == 9


def test_an_observer_that_raises_leaves_no_worker_behind(run, store):
    class Interrupted(Witness):
        def finished(self, trial, record):
            super().finished(trial, record)
            raise KeyboardInterrupt

    witness = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        run([planned("long", "hangs_with_grandchildren"), planned("quick")], jobs=2, witness=witness)

    assert store.find("quick") is not None
    assert store.find("long") is None


def test_a_worker_that_ends_before_the_wait_is_not_waited_for(run, monkeypatch):
    fork, sleep, waits = LocalSlots._fork, LocalSlots._sleep, []

    def fork_and_end(slots, slot, claims, gpus):
        fork(slots, slot, claims, gpus)
        if claims[0].trial.trial_id == "quick":
            wait_until(lambda: slots._running[slot].ended)

    def noted_sleep(slots):
        ended = [worker.claim.trial.trial_id for worker in slots._running.values() if worker.ended]
        waits.append("quick" in ended)  # the other one is ended by its time limit, at any moment
        sleep(slots)

    monkeypatch.setattr(LocalSlots, "_fork", fork_and_end)
    monkeypatch.setattr(LocalSlots, "_sleep", noted_sleep)
    witness = run([planned("long", "hangs_while_writing"), planned("quick")], jobs=2, timeout_s=2)
    assert [which for what, which in witness.calls if what == "finished"] == ["quick", "long"]
    assert waits
    assert not any(waits)


def test_an_empty_plan_starts_nothing(run):
    assert run([]).calls == []


def test_a_cause_that_every_worker_meets_ends_the_sweep_with_its_message(run, store):
    with pytest.raises(UnfitWorkersError, match=r"^No worker can do it\.$") as caught:
        run([planned("a", "ok"), planned("b", "unfit"), planned("c", "ok")])

    assert caught.value.exit_code == EXIT_INTERNAL
    assert [record.trial_id for record in store.read_all()] == ["a"]
    assert not list(store.path("b").parent.glob("b*"))
