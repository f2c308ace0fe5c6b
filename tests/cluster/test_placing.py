"""A sweep on the slots of an engine, with slots that are lost, fail and send nothing; without any engine."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace

import builders
import pytest
from witness import BY_LABEL, VERSIONS, Witness

from profiler.analysis.times.sweep_time import SweepTally
from profiler.cluster import placing
from profiler.cluster.placing import MOST_LOSSES, NoSlotError, PlacedSlots, run_placed
from profiler.cluster.remote import RemoteResult, RemoteTask, run_remote
from profiler.cluster.slots import EndedTask, SlotKind
from profiler.config.options.run_options import RunOptions
from profiler.domain.machines.engines import Machines
from profiler.domain.runs.outcome import Status
from profiler.execution import OpenTrials, TooManyFailuresError
from profiler.execution import trials as open_trials
from profiler.execution.trials import locked_trial
from profiler.storage.stores.record_store import RecordStore

RECORDS = builders.records(builders.lora_vs_full_specs(["qwen2.5-0.5b"]))
PLAN = [builders.planned(record) for record in RECORDS]
CORE = SlotKind()
BY_ID = {record.trial_id: record for record in RECORDS}


class FakeSlots:
    """Slots whose tasks end as `ends` says: with a record, without one, or lost."""

    def __init__(self, tmp_path, *, count=2, ends=lambda trial, time: "ok", kinds=(CORE,)):
        self.tmp_path, self.ends, self.notes = tmp_path, ends, []
        self.idle = {(kind, number): kind for kind in kinds for number in range(count)}
        self.busy, self.ran, self.placed, self.waited, self.closed = {}, [], [], [], False

    def free(self, waiting):
        self.waited.append(dict(waiting))
        return dict(self.idle)

    def run(self, slot, task):
        self.busy[slot] = (self.idle.pop(slot), task)

    def wait(self, *, most_s):
        return [self._end(slot) for slot in list(self.busy)[:1]]

    def _end(self, slot):
        kind, task = self.busy.pop(slot)
        self.idle[slot] = kind
        trial = task.trials[0]
        self.ran.append(trial.trial_id)
        self.placed.append((trial.spec, kind))
        how = self.ends(trial, self.ran.count(trial.trial_id))
        if how == "lost":
            return EndedTask(slot=slot, result=None)
        if how == "nothing":
            return EndedTask(slot=slot, result=RemoteResult())
        if how in ("unfit", "unusable"):
            return EndedTask(
                slot=slot, result=RemoteResult(problem=f"The slot is {how}.", is_everywhere=how == "unfit")
            )
        folder = self.tmp_path / "remote"
        for each in task.trials:
            record = BY_ID[each.trial_id]
            RecordStore(folder).write(record if how == "ok" else replace(record, outcome=builders.outcome_of(how)))
            if how is Status.FAILED:
                outcome = builders.failed(Status.FAILED, f"The full text is in {folder}/records/x.stderr.")
                RecordStore(folder).write(replace(record, outcome=outcome))
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.json")}
        for path in folder.rglob("*.json"):
            path.unlink()
        return EndedTask(slot=slot, result=RemoteResult(files=files, folder=str(folder)))

    def retire(self, slot, reason):
        del self.idle[slot]
        self.notes.append(reason)

    def machines(self):
        return Machines(nodes=3, nodes_busy=len(self.busy))

    def close(self):
        self.closed = True


@dataclass
class Sweep:
    """A plan, and what it runs on."""

    plan: list
    slots: FakeSlots
    trials: OpenTrials
    kind_of: Callable = lambda _: CORE

    def run(self):
        return run_placed(self.plan, kind_of=self.kind_of, slots=self.slots, trials=self.trials)


@pytest.fixture
def place(tmp_path):
    def prepare(plan=PLAN, kind_of=lambda _: CORE, pruning=None, **slots):
        store, seen = RecordStore(tmp_path / "grid"), Witness()
        fake = FakeSlots(tmp_path, **slots)
        trials = OpenTrials(options=RunOptions(), store=store, versions=VERSIONS, observer=seen, pruning=pruning)
        sweep = Sweep(plan=plan, kind_of=kind_of, slots=fake, trials=trials)
        return sweep, fake, store

    return prepare


def test_every_trial_runs_once_and_its_record_is_written_here(place):
    sweep, slots, store = place()
    assert sweep.run() == ()
    assert store.read_all() == tuple(sorted(RECORDS, key=lambda record: record.trial_id))
    assert sorted(slots.ran) == sorted(BY_ID)
    assert slots.closed
    assert not list(store.path("x").parent.glob("*.lock"))


def test_trials_of_lost_slots_run_on_other_slots(place):
    sweep, slots, store = place(ends=lambda trial, time: "lost" if time < MOST_LOSSES else "ok")
    tally = SweepTally(plan=PLAN)
    sweep.trials.observer = tally
    notes = sweep.run()
    state = tally.state()
    assert (state.lost, state.repeated, state.done) == (2 * len(PLAN), len(PLAN), len(PLAN))
    assert state.nodes == 3
    assert [f"{2 * len(PLAN)} times a trial was left" in note for note in notes] == [True]
    assert len(store.read_all()) == len(PLAN)
    assert Counter(slots.ran) == dict.fromkeys(BY_ID, MOST_LOSSES)


def test_the_claim_on_a_trial_is_released_with_its_slot(place, monkeypatch):
    """A claim in a shared store is renewed as long as it is held; that its value is forgotten does not release it."""
    sweep, _, store = place(ends=lambda trial, time: "lost" if time < MOST_LOSSES else "ok")
    held = set()

    def claim(trial_id, *, wait):
        assert trial_id not in held
        held.add(trial_id)
        return SimpleNamespace(release=lambda: held.remove(trial_id))

    monkeypatch.setattr(store, "claim", claim)
    sweep.run()
    assert held == set()


@pytest.mark.parametrize("end", ["lost", "nothing"])
def test_a_trial_that_takes_every_slot_with_it_has_a_record(place, end):
    guilty = PLAN[0].trial_id
    sweep, slots, store = place(ends=lambda trial, time: end if trial.trial_id == guilty else "ok")
    sweep.run()
    assert store.find(guilty).outcome.status is Status.KILLED
    assert slots.ran.count(guilty) == MOST_LOSSES
    assert len(store.read_all()) == len(PLAN)


def test_what_is_answered_does_not_run(place):
    sweep, slots, store = place()
    for record in RECORDS[:2]:
        store.write(record)
    sweep.run()
    assert len(slots.ran) == len(PLAN) - 2


def test_an_earlier_record_without_an_answer_is_replaced(place):
    sweep, _, store = place(ends=lambda trial, time: "lost" if time == 1 else "ok")
    store.write(replace(RECORDS[0], outcome=builders.failed()))
    sweep.run()
    assert store.find(PLAN[0].trial_id) == RECORDS[0]


def test_a_trial_that_another_sweep_holds_waits(place):
    sweep, slots, store = place()
    held = store.claim(PLAN[0].trial_id, wait=False)
    real = slots.wait

    def wait(*, most_s):
        if len(slots.ran) == len(PLAN) - 1:
            held.release()
        return real(most_s=most_s)

    slots.wait = wait
    sweep.run()
    assert slots.ran[-1] == PLAN[0].trial_id


def test_failures_in_a_row_end_the_sweep(place):
    sweep, slots, store = place(ends=lambda trial, time: Status.FAILED)
    with pytest.raises(TooManyFailuresError, match="5 trials in a row"):
        sweep.run()
    assert slots.closed
    assert len(store.read_all()) == 5
    own = store.path("x").parent
    assert {record.outcome.verdict.message for record in store.read_all()} == {f"The full text is in {own}/x.stderr."}


def test_an_answer_between_failures_lets_the_sweep_go_on(place, monkeypatch):
    monkeypatch.setattr(open_trials, "MAX_FAILURES_IN_A_ROW", 3)
    sweep, _, store = place(ends=lambda trial, time: "ok" if trial == PLAN[2] else Status.FAILED, count=1)
    sweep.run()
    statuses = [store.find(trial.trial_id).outcome.status for trial in PLAN]
    assert statuses == [Status.FAILED, Status.FAILED, Status.OK, Status.FAILED, Status.FAILED]


def test_a_cause_that_every_slot_would_meet_ends_the_sweep(place):
    sweep, slots, _ = place(ends=lambda trial, time: "unfit")
    with pytest.raises(NoSlotError, match="The slot is unfit"):
        sweep.run()
    assert len(slots.ran) == 1


def test_a_slot_on_which_no_trial_can_run_is_retired_and_its_trial_runs_on_another(place):
    first = PLAN[0].trial_id
    sweep, slots, store = place(ends=lambda trial, time: "unusable" if (trial.trial_id, time) == (first, 1) else "ok")
    assert sweep.run()[-1] == "The slot is unusable."
    assert len(slots.idle) == 1
    assert len(store.read_all()) == len(PLAN)


def test_without_any_slot_it_ends(place, monkeypatch):
    monkeypatch.setattr(placing, "NO_SLOT_S", 0.1)
    monkeypatch.setattr(placing, "ANNOUNCE_S", 0.0)
    sweep, _, _ = place(count=0)
    with pytest.raises(NoSlotError, match=f"{len(PLAN)} trials were not run"):
        sweep.run()
    assert sweep.trials.observer.waits == ["Waiting for a slot: the cluster has none that is free."]


def test_trials_run_on_slots_of_their_kind(place):
    kinds = {tuning: SlotKind(gpus=1, accelerator=tuning) for tuning in {trial.spec.tuning for trial in PLAN}}
    sweep, slots, _ = place(kind_of=lambda spec: kinds[spec.tuning], kinds=tuple(kinds.values()))
    sweep.run()
    assert len(slots.placed) == len(PLAN)
    assert all(kind == kinds[spec.tuning] for spec, kind in slots.placed)
    assert slots.waited[0] == Counter(kinds[trial.spec.tuning] for trial in PLAN)
    assert slots.waited[-1] == {}


def test_a_slot_gets_no_trial_of_another_kind(place):
    few, many = (SlotKind(gpus=1, accelerator=name) for name in ("few", "many"))
    sweep, slots, _ = place(kind_of=lambda spec: few if spec == PLAN[0].spec else many, kinds=(few, many))
    sweep.run()
    assert [spec for spec, kind in slots.placed if kind == few] == [PLAN[0].spec]


def test_a_slot_runs_a_trial_as_one_machine_does_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for trial, status in zip(PLAN, (Status.OK, Status.KILLED), strict=False):
        labelled = replace(trial, label="ok" if status is Status.OK else "killed")
        task = RemoteTask(trials=(labelled,), versions=VERSIONS, options=RunOptions(), program=BY_LABEL)
        result = run_remote(task)
        assert result.problem == ""
        for name, content in result.files.items():
            (tmp_path / "back" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "back" / name).write_bytes(content)
        assert RecordStore(tmp_path / "back").find(trial.trial_id).outcome.status is status
    assert not list(tmp_path.glob("grpo-vram-slot-*"))


KINDS = (("records", ".json"), ("samples", ".parquet"), ("snapshots", ".pickle"))
STRANGE = ("samples/../../outside", "/outside", "report.html", "records/x.json", f"samples/{'0' * 16}.parquet")


class Strangers(FakeSlots):
    """Slots that also send files that are not of their trials."""

    def _end(self, slot):
        ended = super()._end(slot)
        return replace(ended, result=RemoteResult(files={**dict.fromkeys(STRANGE, b"strange"), **ended.result.files}))


def test_a_slot_writes_only_files_of_its_trials(tmp_path):
    """Otherwise whoever answers for a slot would write any file of this machine."""
    store = RecordStore(tmp_path / "results" / "grid")
    trials = OpenTrials(options=RunOptions(), store=store, versions=VERSIONS, observer=Witness())
    Sweep(plan=PLAN, slots=Strangers(tmp_path), trials=trials).run()
    written = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    assert written == sorted(f"results/grid/records/{trial.trial_id}.json" for trial in PLAN)


def test_samples_of_a_slot_are_there_before_their_record(tmp_path, monkeypatch):
    """A record marks its trial as done: a sweep that is killed in between would never get the samples."""
    trial, written = PLAN[0], []
    monkeypatch.setattr(placing, "write_atomically", lambda path, _: written.append(path.parent.name))
    names = [f"{kind}/{trial.trial_id}{suffix}" for kind, suffix in KINDS]
    store = RecordStore(tmp_path / "grid")
    trials = OpenTrials(options=RunOptions(), store=store, versions=VERSIONS, observer=Witness())
    slots = PlacedSlots(slots=FakeSlots(tmp_path), kind=lambda _: CORE, trials=trials)
    group = [locked_trial(trial, None, tmp_path / "none")]
    slots._write_files(group, RemoteResult(files=dict.fromkeys(names, b"")))
    assert sorted(written[:2]) == ["samples", "snapshots"]
    assert written[2:] == ["records"]
