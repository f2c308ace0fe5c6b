"""Claims between machines: one holder, which renews; a dead one's claim runs out, by any machine's own clock."""

import pytest

from profiler.domain.machines.engines import THIS_MACHINE
from profiler.storage.files.atomic import StorageError
from profiler.storage.stores import leases as module
from profiler.storage.stores.leases import CLAIMS, Leases, claim_name
from profiler.storage.stores.objects import FolderObjects, PatientObjects

TRIAL = "0123456789abcdef"
LEASE_S = 60.0


class Clock:
    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        return self.now_s


class Cut(FolderObjects):
    """A folder that cannot be reached while `is_cut`."""

    is_cut = False

    def list(self, prefix):
        self._reach()
        return super().list(prefix)

    def write(self, name, content):
        self._reach()
        super().write(name, content)

    def _reach(self):
        if self.is_cut:
            raise ConnectionError(111, "no route to it")


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def machine(tmp_path, clock, monkeypatch):
    """Return a function that makes a machine with its own view of the store; its thread never runs by itself."""
    monkeypatch.setattr(Leases, "_start_renewing", lambda self: None)

    def new():
        objects = Cut(tmp_path)
        patient = PatientObjects(objects, address="file://x", persist_s=0.0, clock=clock, sleep=lambda _: None)
        return Leases(objects=patient, impatient=patient, lease_s=LEASE_S, clock=clock), objects

    return new


def later(clock, *machines, seconds, step_s=10.0):
    """Let time pass, in which these machines renew their claims."""
    for _ in range(round(seconds / step_s)):
        clock.now_s += step_s
        for leases in machines:
            leases.renew_all()


def test_one_machine_holds_a_trial_and_gives_it_back(machine, tmp_path):
    (one, _), (other, _) = machine(), machine()
    lease = one.take(TRIAL)
    assert lease is not None
    assert other.take(TRIAL) is None
    assert one.is_held(lease)
    one.end(lease)
    assert list((tmp_path / CLAIMS).iterdir()) == []
    assert other.take(TRIAL) is None  # its list is not older than a second
    other._listed_s = 0.0
    assert other.take(TRIAL) is not None


def test_a_claim_that_is_renewed_never_runs_out(machine, clock):
    (one, _), (other, _) = machine(), machine()
    lease = one.take(TRIAL)
    for _ in range(20):
        assert other.take(TRIAL) is None
        later(clock, one, seconds=LEASE_S / 2)
    assert one.is_held(lease)


def test_the_claim_of_a_dead_machine_runs_out_once_nobody_has_seen_it_change(machine, clock):
    (dead, _), (one, _), (other, _) = machine(), machine(), machine()
    dead.take(TRIAL)
    clock.now_s += 10 * LEASE_S
    assert one.take(TRIAL) is None  # just seen for the first time: it may have been renewed a moment ago
    clock.now_s += LEASE_S - 1
    assert one.take(TRIAL) is None
    clock.now_s += 1
    lease = one.take(TRIAL)
    assert lease is not None
    assert lease.generation == 2
    clock.now_s += 2
    assert other.take(TRIAL) is None


def test_of_many_machines_one_takes_a_trial_over(machine, clock):
    (dead, _), *others = (machine() for _ in range(6))
    dead.take(TRIAL)
    for leases, _ in others:
        assert leases.take(TRIAL) is None
    clock.now_s += LEASE_S
    assert sum(leases.take(TRIAL) is not None for leases, _ in others) == 1


def test_a_machine_that_was_cut_off_for_too_long_learns_that_it_has_lost_the_trial(machine, clock):
    (one, network), (other, _) = machine(), machine()
    lease = one.take(TRIAL)
    assert other.take(TRIAL) is None
    network.is_cut = True
    later(clock, one, seconds=LEASE_S)
    with pytest.raises(StorageError, match="could not be written"):
        one.is_held(lease)
    taken = other.take(TRIAL)
    assert taken is not None
    network.is_cut = False
    assert not one.is_held(lease)
    later(clock, one, seconds=LEASE_S)
    assert lease.lost
    one.end(lease)
    assert other.is_held(taken)


def test_a_short_cut_costs_nothing(machine, clock):
    (one, network), (other, _) = machine(), machine()
    lease = one.take(TRIAL)
    assert other.take(TRIAL) is None
    network.is_cut = True
    later(clock, one, seconds=LEASE_S / 2)
    network.is_cut = False
    later(clock, one, seconds=LEASE_S / 4)
    clock.now_s += LEASE_S / 2
    assert other.take(TRIAL) is None
    assert one.is_held(lease)


def test_a_process_of_this_machine_that_has_ended_holds_nothing(machine, monkeypatch):
    (dead, _), (one, _) = machine(), machine()
    dead.take(TRIAL)
    monkeypatch.setattr(module, "process_runs", lambda pid: False)
    assert one.take(TRIAL) is not None


def test_what_is_no_claim_of_ours_blocks_until_it_runs_out(machine, clock):
    leases, objects = machine()
    objects.create(claim_name(TRIAL, 7), b"[1, 2")
    assert leases.take(TRIAL) is None
    clock.now_s += LEASE_S
    lease = leases.take(TRIAL)
    assert lease is not None
    assert lease.generation == 8
    leases.end(lease)
    assert not objects.list(CLAIMS)


def test_what_other_machines_do_is_known_from_their_claims(machine, clock, monkeypatch):
    (dead, _), (alive, _), (one, _) = machine(), machine(), machine()
    dead.take(TRIAL)
    alive.take("1" * 16)
    own = one.take("2" * 16)
    one.renew_all()
    found = one.other_machines()
    assert dict(found.running) == {TRIAL: THIS_MACHINE, "1" * 16: THIS_MACHINE}
    assert (found.lost, found.repeated) == (0, 0)
    later(clock, alive, one, seconds=LEASE_S)
    found = one.other_machines()
    assert set(found.running) == {"1" * 16}
    assert (found.lost, found.repeated) == (1, 0)
    monkeypatch.setattr(module, "host_place", lambda: "another-host-4026531836")
    alive.take(TRIAL)
    monkeypatch.undo()
    clock.now_s += 2
    one.renew_all()
    found = one.other_machines()
    assert dict(found.running) == {TRIAL: "another-host", "1" * 16: THIS_MACHINE}
    assert (found.lost, found.repeated) == (1, 1)
    one.end(own)


def test_an_object_that_is_no_claim_is_left_alone(machine, tmp_path):
    (one, objects) = machine()
    objects.write(f"{CLAIMS}README", b"[]")
    one.renew_all()
    assert dict(one.other_machines().running) == {}


def test_the_claim_that_a_killed_process_left_behind_is_removed_and_no_other(machine, clock, monkeypatch):
    other, settled = "1" * 16, "2" * 16
    (dead, objects), (one, _) = machine(), machine()
    for trial_id in (TRIAL, settled):
        dead.take(trial_id)
    own = one.take(other)
    one.remove_abandoned([TRIAL, other, settled])
    assert len(objects.list(CLAIMS)) == 3
    later(clock, one, seconds=LEASE_S)
    one.remove_abandoned([settled])
    assert set(objects.list(CLAIMS)) == {claim_name(TRIAL, 1), own.name}
    monkeypatch.setattr(module, "process_runs", lambda pid: False)
    one.remove_abandoned([])
    assert set(objects.list(CLAIMS)) == {own.name}
