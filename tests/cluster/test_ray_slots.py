"""Which actors are started, kept and ended, with a fake of ray; tests on a real cluster are in test_real_ray.py."""

import importlib
import sys
from dataclasses import replace

import fake_ray
import pytest
from witness import VERSIONS

from profiler.cluster.remote import RemoteResult, trial_python
from profiler.cluster.slots import Node, SlotKind
from profiler.config.options.run_options import RunOptions
from profiler.domain.errors import Fault
from profiler.domain.machines.engines import Machines
from profiler.domain.trials.trial import Backend
from profiler.measurement.driver.visible import VisibleGpu, VisibleGpus

CORE = SlotKind()
H100 = VisibleGpus(gpus=(VisibleGpu(uuid="GPU-1", name="NVIDIA H100", memory_bytes=1),), note="", driver_version="580")
ON_H100 = SlotKind(gpus=1, accelerator="H100", hardware=H100.hardware)
PAIR = replace(ON_H100, gpus=2)
H100_NODE = {"CPU": 8.0, "GPU": 2.0, "accelerator_type:H100": 1.0}


@pytest.fixture
def ray(monkeypatch):
    fake = fake_ray.install(monkeypatch)
    fake.alive = [{"CPU": 2.0}, {"CPU": 1.0}]
    fake.first = lambda actor: Node(name="n1", versions=VERSIONS, gpus=H100)
    fake.answer = lambda actor, name, args: fake_ray.Reference(fake.first(actor) if name == "node" else RemoteResult())
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    yield fake
    sys.modules.pop("profiler.cluster.ray_cluster", None)


@pytest.fixture
def module(ray):
    return importlib.import_module("profiler.cluster.ray_cluster")


@pytest.fixture
def slots(module):
    def make(jobs=None):
        return module.RaySlots(slot=module.Slot, jobs=jobs, versions=VERSIONS)

    return make


def started(slots, waiting):
    """Return the free slots after those that were started have answered."""
    slots.free(waiting)
    slots.wait(most_s=0.0)
    return slots.free(waiting)


@pytest.mark.parametrize(("jobs", "waiting", "count"), [(None, 10, 3), (None, 2, 2), (2, 10, 2), (5, 10, 5)])
def test_there_are_as_many_slots_as_trials_wait_cores_exist_and_jobs_allow(ray, slots, jobs, waiting, count):
    assert len(started(slots(jobs), {CORE: waiting})) == count
    assert all(actor.options["num_cpus"] == 1 and "num_gpus" not in actor.options for actor in ray.actors)


def test_nodes_without_cores_and_gpus_do_not_count(ray, slots):
    ray.alive = [{"CPU": 0.0, "memory": 9.0}, {"CPU": 1.0}, H100_NODE]
    found = slots()
    started(found, {CORE: 9})
    assert found.machines() == Machines(nodes=2, nodes_busy=0, gpus=2)


def test_slots_get_the_python_of_the_trials(ray, module):
    python, asked = trial_python(RunOptions(), [Backend.EMULATED]), []
    ray.answer = lambda actor, name, args: asked.append((name, args)) or fake_ray.Reference(ray.first(actor))
    started(module.RaySlots(slot=module.Slot, jobs=1, versions=VERSIONS, python=python), {CORE: 1})
    assert asked == [("node", (python,))]


def test_sweeps_of_one_process_share_a_connection(ray, module):
    first, second = (module.reach_ray("local", jobs=1) for _ in range(2))
    first.close()
    assert ray.connections == ["local"]
    second.close()
    second.close()
    assert ray.connections == ["local", None]


def test_an_empty_cluster_is_asked_for_one_slot(ray, slots):
    ray.alive = []
    assert len(started(slots(), {CORE: 10})) == 1


def test_a_slot_of_a_card_asks_for_it(ray, slots):
    ray.alive = [{"CPU": 8.0}, H100_NODE, {"CPU": 8.0, "GPU": 4.0, "accelerator_type:L40S": 1.0}]
    assert list(started(slots(), {ON_H100: 9}).values()) == [ON_H100] * 2
    assert {(each.options["num_gpus"], each.options["accelerator_type"]) for each in ray.actors} == {(1, "H100")}


def test_slots_that_nothing_needs_are_ended_and_make_place_for_others(ray, slots):
    ray.alive = [H100_NODE]
    found = slots()
    started(found, {ON_H100: 5})
    assert list(started(found, {PAIR: 1}).values()) == [PAIR]
    assert [actor.gpus for actor in ray.killed] == [1, 1]
    assert found.free({}) == {}
    assert len(ray.killed) == 3


def test_a_slot_that_is_lost_with_its_task_is_replaced(ray, slots):
    found = slots(1)
    (slot,) = started(found, {CORE: 3})
    ray.answer = lambda actor, name, args: fake_ray.Reference(fake_ray.RayError("The node has died.\nmore"))
    found.run(slot, None)
    (ended,) = found.wait(most_s=0.0)
    assert (ended.slot, ended.result, ended.reason) == (slot, None, "The node has died")
    found.free({CORE: 3})
    assert len(ray.actors) == 2


def test_slots_that_end_while_they_start_end_the_sweep(ray, slots, module):
    ray.first = lambda actor: fake_ray.RayError("No module named 'x'")
    found = slots(2)
    with pytest.raises(module.NoSlotStartsError, match="10 slots in a row were lost while they started: No module"):
        for _ in range(module.MOST_FAILED_STARTS):
            started(found, {CORE: 3})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"versions": replace(VERSIONS, torch="2.1")}, "has other versions"),
        ({"faults": (Fault(key="python", found="/x", problem="has no trl"),)}, "python=/x: has no trl."),
        ({"gpus": replace(H100, driver_version="590")}, "its card is NVIDIA H100, 1 bytes, driver 590"),
        ({"gpus": VisibleGpus(gpus=(), note="no driver answers")}, "its card is no driver answers"),
    ],
)
def test_a_slot_on_another_machine_than_expected_is_kept_and_not_used(ray, slots, module, change, said):
    ray.alive = [H100_NODE]
    good = ray.first
    ray.first = lambda actor: good(actor) if actor is not ray.actors[0] else replace(good(actor), **change)
    found = slots()
    assert len(started(found, {ON_H100: 9})) == 1
    assert len(ray.actors) == 2  # the first one holds its GPU, so no other is started there
    assert not ray.killed
    assert [said in note for note in found.notes] == [True]
    found.retire(next(iter(found.free({ON_H100: 9}))), "Its GPU broke.")
    with pytest.raises(module.NoSlotStartsError, match=r"No slot is left\. Its GPU broke\."):
        found.free({ON_H100: 9})
    found.close()
    assert len(ray.killed) == 2


def test_usage_statistics_are_switched_off(module):
    import os

    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
