"""A sweep that watches slots: what it reports, when slots are replaced, and when it ends; without a scheduler."""

from dataclasses import replace

import builders
import pytest

from profiler.cluster.arrays.array import (
    ALL_WAIT,
    HARDWARE,
    MOST_LOSSES,
    REPORTS,
    SlotArray,
    SlotReport,
    SlotsFailedError,
)
from profiler.cluster.arrays.array import SlotState as State
from profiler.config.options.run_options import RunOptions
from profiler.domain.machines.engines import Holder, Machines, SlurmGpus
from profiler.domain.runs.outcome import Status
from profiler.storage.stores.objects import FolderObjects

RECORDS = builders.records(builders.lora_vs_full_specs(["qwen2.5-0.5b"]))
PLAN = [builders.planned(record) for record in RECORDS]
OPTIONS = RunOptions()


class World:
    """A queue, a store and a clock. `events` are done one after the other, one per pause of the sweep."""

    def __init__(self, tmp_path, *events):
        self.reports, self.events = FolderObjects(tmp_path), list(events)
        self.queue, self.records, self.claims, self.marks = {}, {}, {}, set()
        self.at = []
        self.submitted, self.cancelled, self.forgotten, self.seen, self.now_s = 0, [], False, [], 0.0
        self.array = SlotArray(
            jobs=self,
            reports=self.reports,
            place="/logs",
            clock=lambda: self.now_s,
            sleep=self.pause,
            lost_after_s=10.0,
        )

    def run(self, count=2, options=OPTIONS):
        self.array.start_for(len(PLAN), jobs=count)
        self.array.run(PLAN, store=self, options=options, observer=self)

    def pause(self, seconds):
        self.now_s += seconds
        assert self.events, "the sweep does not end"
        self.events.pop(0)()

    # ---- the queue

    def submit(self, count):
        names = [f"{self.submitted + number}" for number in range(count)]
        self.submitted += count
        self.queue |= dict.fromkeys(names, True)
        return names

    def queued(self):
        return dict(self.queue)

    def cancel(self, *, waiting_only=False):
        self.cancelled.append(waiting_only)
        self.queue = {name: runs for name, runs in self.queue.items() if waiting_only and runs}

    def forget(self):
        self.forgotten = True

    # ---- the store

    def find_many(self, names):
        return [(name, self.records.get(name)) for name in names]

    def claimed(self):
        return dict(self.claims)

    def ended(self):
        return frozenset(self.marks)

    # ---- the observer

    def started(self, trial):
        self.seen.append(("started", trial.trial_id))

    def lost(self, trial):
        self.seen.append(("lost", trial.trial_id))

    def machines(self, found):
        self.at.append(found)

    def waiting(self, reason):
        self.seen.append(("waiting", reason))

    def finished(self, trial, record):
        self.seen.append((str(record.outcome.status), trial.trial_id))

    # ---- events

    def hold(self, number, generation=1, host="node-7"):
        self.claims[PLAN[number].trial_id] = Holder(generation=generation, host=host)

    def answer(self, number, status=Status.OK):
        def do():
            record = RECORDS[number]
            self.records[record.trial_id] = replace(record, outcome=builders.outcome_of(status))

        return do

    def answer_all(self):
        for number in range(len(RECORDS)):
            self.answer(number)()
        self.queue = {}

    def fail(self, number):
        """End a trial without an answer, so that no slot runs it again."""

        def do():
            self.answer(number, Status.FAILED)()
            self.marks.add(RECORDS[number].trial_id)

        return do

    def begin(self, name, node):
        report = SlotReport(node=node, state=State.RUNNING)
        return lambda: self.reports.write(f"{REPORTS}{name}", report.content())

    def end(self, name, code=0, problem=""):
        def do():
            self.queue.pop(name, None)
            report = SlotReport(node="node-7", state=State.ENDED, code=code, problem=problem)
            self.reports.write(f"{REPORTS}{name}", report.content())

        return do

    def die(self, name):
        return lambda: self.queue.pop(name)

    def idle(self):
        pass


def test_trials_are_reported_as_they_start_and_end_and_then_the_slots(tmp_path):
    world = World(tmp_path)
    world.events = [lambda: world.hold(0), world.answer(0), world.answer_all]
    world.run()
    assert world.seen[:2] == [("started", PLAN[0].trial_id), ("ok", PLAN[0].trial_id)]
    assert sorted(name for status, name in world.seen if status == "ok") == sorted(trial.trial_id for trial in PLAN)
    assert world.cancelled == [True]
    assert world.forgotten
    assert world.array.notes == ()


def test_the_nodes_and_gpus_are_those_of_the_slots_that_run(tmp_path):
    world = World(tmp_path)

    def wait():
        world.queue["2"] = False

    world.events = [
        world.begin("0", "a"),
        world.begin("1", "b"),
        world.begin("2", "b"),
        lambda: world.hold(0, host="a"),
    ]
    world.events += [wait, world.end("0"), world.answer_all]
    world.run(3, replace(OPTIONS, slurm_gpus_per_node=SlurmGpus(kind="h100", count=4)))
    found = [(at.nodes, at.nodes_busy, at.gpus) for at in world.at]
    assert found[:7] == [(0, 0, 0), (1, 0, 4), (2, 0, 8), (2, 0, 12), (2, 1, 12), (2, 1, 8), (1, 1, 4)]
    assert found[-1][1] == 0
    other = World(tmp_path / "other")
    other.events = [other.answer_all]
    other.run()
    assert other.at[0] == Machines(nodes=0, nodes_busy=0, gpus=None)


def test_a_trial_that_another_slot_takes_over_is_lost_and_repeated(tmp_path):
    world = World(tmp_path)
    one, other = PLAN[0].trial_id, PLAN[1].trial_id
    world.events = [lambda: world.hold(0), lambda: world.hold(0), lambda: world.hold(0, generation=2)]
    # A slot at its time limit gives its claim back.
    world.events += [lambda: world.hold(1), lambda: world.claims.pop(other), world.idle, lambda: world.hold(1)]
    world.events += [world.answer_all]
    world.run()
    assert [found for found in world.seen if found[0] in ("started", "lost")] == [
        *[("started", one), ("lost", one), ("started", one)],
        *[("started", other), ("lost", other), ("started", other)],
    ]


def test_a_trial_whose_claim_is_given_back_before_its_record_shows_is_not_lost(tmp_path):
    world = World(tmp_path)
    world.events = [lambda: world.hold(0), world.claims.clear, world.answer(0), world.idle, world.answer_all]
    world.run()
    assert [status for status, _ in world.seen if status == "lost"] == []


def test_a_trial_that_has_ended_without_an_answer_is_not_waited_for(tmp_path):
    world = World(tmp_path)
    world.records[PLAN[1].trial_id] = replace(RECORDS[1], outcome=builders.outcome_of(Status.FAILED))
    world.events = [world.fail(0), *[world.answer(number) for number in range(2, len(PLAN))], world.fail(1)]
    world.events.append(lambda: world.queue.clear())
    world.run()
    assert ("failed", PLAN[0].trial_id) == world.seen[0]
    assert [name for status, name in world.seen if status == "failed"] == [PLAN[0].trial_id, PLAN[1].trial_id]
    assert world.cancelled[0] is True


def test_without_resume_records_of_earlier_sweeps_are_not_answers(tmp_path):
    world = World(tmp_path)
    world.answer_all()

    def mark_all():
        world.marks |= {trial.trial_id for trial in PLAN}
        world.queue = {}

    world.queue = {}
    world.events = [lambda: world.seen.append("waits"), mark_all]
    world.run(options=replace(OPTIONS, resume=False))
    assert world.seen[0] == "waits"
    assert len(world.seen) == 1 + len(PLAN)


def test_slots_that_do_not_end_after_the_last_trial_are_cancelled(tmp_path):
    world = World(tmp_path)

    def answer_all():
        queue = world.queue
        world.answer_all()
        world.queue = queue

    world.events = [answer_all, *[world.idle] * 40]
    world.run()
    assert world.cancelled == [True, False]
    assert world.queue == {}


def test_a_lost_slot_is_replaced_when_it_has_been_missing_for_a_while(tmp_path):
    world = World(tmp_path)
    world.events = [world.die("1"), *[world.idle] * 4, lambda: world.seen.append(world.submitted)]
    world.events += [lambda: world.seen.append(world.submitted), world.answer_all]
    world.run()
    assert [found for found in world.seen if isinstance(found, int)] == [2, 3]
    assert world.array.notes == ("1 slot was lost and replaced; other slots ran its trials. Its log is in /logs.",)
    assert not world.forgotten


def test_a_slot_that_is_requeued_is_not_lost(tmp_path):
    world = World(tmp_path)
    back = lambda: world.queue.update({"1": False})  # noqa: E731
    world.events = [world.die("1"), world.idle, back, *[world.idle] * 20, world.answer_all]
    world.run()
    assert world.submitted == 2
    assert world.array.notes == ()


def test_slots_that_are_lost_one_after_the_other_end_the_sweep(tmp_path):
    world = World(tmp_path)

    def die():
        world.queue = {}

    world.events = [die] * 200
    with pytest.raises(SlotsFailedError, match="without a report and without a finished trial") as found:
        world.run()
    assert found.value.exit_code == 70
    assert world.submitted <= 2 * (MOST_LOSSES + 1)


def test_a_slot_that_refuses_the_sweep_ends_all_slots(tmp_path):
    world = World(tmp_path)
    world.events = [world.end("0", code=2, problem="engine=slurm: node node-7 has trl 1 and not 2.")]
    with pytest.raises(SlotsFailedError, match="engine=slurm: node node-7 has trl 1 and not 2") as found:
        world.run()
    assert found.value.exit_code == 2
    assert world.cancelled == [False]


def test_what_the_slots_report_is_the_error_if_none_is_left(tmp_path):
    world = World(tmp_path)
    world.events = [
        world.end("0", code=34, problem="Stopped: 5 trials."),
        world.answer(0, Status.FAILED),
        world.end("1"),
    ]
    with pytest.raises(SlotsFailedError, match=r"Stopped: 5 trials\. The logs of the slots are in /logs\.$") as found:
        world.run()
    assert found.value.exit_code == 34
    assert ("failed", PLAN[0].trial_id) in world.seen


def test_slots_that_have_ended_leave_trials_without_an_answer_to_the_report(tmp_path):
    world = World(tmp_path)
    world.records[PLAN[1].trial_id] = replace(RECORDS[1], outcome=builders.outcome_of(Status.KILLED))
    world.events = [world.answer(0, Status.FAILED), world.end("0"), world.end("1")]
    world.run()
    assert world.seen == [("failed", PLAN[0].trial_id)]  # the other record is of an earlier sweep
    assert world.array.notes == ("The logs of the slots are in /logs.",)


def test_a_queue_that_does_not_answer_loses_no_slot(tmp_path):
    world = World(tmp_path)
    world.queued = lambda: None
    world.events = [*[world.idle] * 20, world.answer_all]
    world.run()
    assert world.submitted == 2


def test_slots_that_wait_are_announced_when_they_begin_to_wait(tmp_path):
    world = World(tmp_path)

    def wait():
        world.queue = dict.fromkeys(world.queue, False)

    world.events = [wait, world.idle, lambda: world.queue.update({"0": True}), wait, world.answer_all]
    world.run()
    assert world.seen.count(("waiting", ALL_WAIT)) == 2


def test_the_card_is_that_of_the_first_slot(tmp_path):
    world = World(tmp_path)
    world.events = [world.idle, lambda: world.reports.create(HARDWARE, b"NVIDIA H100, driver 1")]
    world.array.start(1)
    assert world.array.hardware() == "NVIDIA H100, driver 1"


def test_the_card_of_the_slots_is_that_of_the_first_report_that_names_one(tmp_path):
    world = World(tmp_path)
    assert world.array.card == ""
    world.begin("0", "a")()
    report = SlotReport(node="b", state=State.RUNNING, card="h100-80gb")
    world.reports.write(f"{REPORTS}1", report.content())
    assert world.array.card == "h100-80gb"


def test_slots_of_an_earlier_start_are_completed_and_cancelled_at_the_end(tmp_path):
    world = World(tmp_path)
    world.queue = {"7": True}
    world.array = SlotArray(jobs=world, reports=world.reports, place="/logs", names={"7"})
    world.array.start_for(10, jobs=3)
    assert world.submitted == 2
    world.array.close()
    assert world.queue == {}
