"""Rounds of a sweep in a shared store: what runs once in each, who takes part, and when the next one begins."""

from dataclasses import replace

import builders
import pytest

from profiler.config.options.run_options import RunOptions
from profiler.domain.machines.engines import address_of
from profiler.domain.runs.outcome import Status
from profiler.execution.trials import stored_answer, stored_answers
from profiler.storage.stores.leases import Leases
from profiler.storage.stores.objects import FolderObjects
from profiler.storage.stores.shared_store import open_shared
from profiler.storage.stores.trial_store import take_part

RECORDS = builders.records(builders.lora_vs_full_specs(["qwen2.5-0.5b"]))
IDS = [record.trial_id for record in RECORDS]
ONE = IDS[0]
OPTIONS = RunOptions()
AGAIN = RunOptions(resume=False)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Return a function that starts a machine with the plan."""
    monkeypatch.setattr(Leases, "_start_renewing", lambda self: None)
    started = []

    def start(options=OPTIONS, marks=None):
        started.append(None)
        folder = tmp_path / f"{len(started)}" / "grid"
        store = open_shared(address_of(f"file://{tmp_path}/mounted"), folder, lease_s=60.0, notify=print)
        store.take_part(IDS, marks=marks, runs_all=not options.resume)
        return store

    return start


def run(store, status, number=0):
    claim = store.claim(IDS[number], wait=False)
    store.write(replace(RECORDS[number], outcome=builders.outcome_of(status)))
    claim.release()


def must_run(store, options=OPTIONS):
    """Whether a machine that is about to run a trial, or starts, runs it; both agree."""
    found = stored_answer(ONE, store=store, options=options) is None
    assert (ONE not in stored_answers(IDS, store=store, options=options)) is found
    return found


@pytest.mark.parametrize("status", [Status.FAILED, Status.KILLED, Status.TIMEOUT, Status.CONTENDED])
def test_a_trial_without_an_answer_runs_on_one_machine_of_a_round(machine, status):
    one, other = machine(), machine()
    run(one, status)
    assert not must_run(one)
    assert not must_run(other)
    assert not must_run(machine())  # one that starts later, or was killed and starts again
    other.end_round()
    assert must_run(machine())
    assert not must_run(one)  # it is still in its round


def test_what_failed_before_the_round_runs_again_in_it_once(machine):
    before = machine()
    run(before, Status.FAILED)
    before.end_round()
    one, other = machine(), machine()
    assert must_run(one)
    assert must_run(other)
    run(other, Status.FAILED)
    assert not must_run(one)


def test_a_trial_whose_gpu_broke_runs_on_another_machine(machine):
    run(machine(), Status.DEVICE_FAULT)
    assert must_run(machine())


def test_without_resume_each_trial_runs_once_in_a_round_and_again_in_the_next(machine):
    machine().end_round()
    run(machine(), Status.OK)
    one, other = machine(AGAIN), machine(AGAIN)
    assert must_run(one, AGAIN)
    run(one, Status.OK)
    assert not must_run(other, AGAIN)
    assert not must_run(machine(AGAIN), AGAIN)
    other.end_round()
    assert must_run(machine(AGAIN), AGAIN)


def test_what_others_have_run_without_resume_is_known_without_a_look(machine):
    one, other = machine(AGAIN), machine(AGAIN)
    run(one, Status.OK, number=2)
    other._leases.renew_all()
    assert [name for name in IDS if other.is_news(name)] == [IDS[2]]
    assert other.other_machines().done == {IDS[2]}


def test_slots_of_an_array_are_in_its_round_whenever_they_start(machine, tmp_path):
    array, next_array = FolderObjects(tmp_path / "array"), FolderObjects(tmp_path / "next")
    one = machine(marks=array)
    run(one, Status.FAILED)
    one.end_round()  # at the end of its plan, while another slot still waits in the queue
    assert not must_run(machine(marks=array))
    assert must_run(machine(marks=next_array))


def test_other_plans_have_rounds_of_their_own_and_only_two_of_each_are_kept(tmp_path):
    objects = FolderObjects(tmp_path)
    other = take_part(objects, ["x"])
    names = []
    for _ in range(4):
        found = take_part(objects, ["b", "a"])
        assert take_part(objects, ["a", "b"]) == found
        objects.write(f"{found.marks}a", b"failed")
        names.append(found.name)
        found.end()
    assert len(set(names)) == 4
    assert sorted(objects.list("ended/")) == [f"ended/{name}/a" for name in names[2:]]
    assert sorted(objects.list("rounds/")) == sorted(
        [f"rounds/{other.name}", *(f"rounds/{name}{end}" for name in names[2:] for end in ("", ".over"))]
    )
    assert take_part(objects, ["x"]) == other


def test_of_two_machines_that_begin_a_round_at_the_same_time_one_takes_part_in_that_of_the_other(tmp_path):
    class Late(FolderObjects):
        """Lists the rounds before another machine begins one."""

        def list(self, prefix):
            found = super().list(prefix)
            take_part(FolderObjects(tmp_path), IDS)
            return found

    assert take_part(Late(tmp_path), IDS) == take_part(FolderObjects(tmp_path), IDS)
    assert len(FolderObjects(tmp_path).list("rounds/")) == 1
