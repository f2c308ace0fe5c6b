"""Records in a store that machines share: what is published, when, and what others see of it."""

from dataclasses import replace

import builders
import pytest

from profiler.domain.errors import UsageError
from profiler.domain.machines.engines import THIS_MACHINE, Holder, Scheme, address_of
from profiler.domain.machines.extras import Extra, install_hint
from profiler.storage.files.atomic import StorageError
from profiler.storage.files.trial_files import snapshot_path, write_memory_snapshot
from profiler.storage.records.record_folder import TRIALS, rank_peaks
from profiler.storage.stores import record_store as records
from profiler.storage.stores import shared_store
from profiler.storage.stores.leases import CLAIMS, Leases
from profiler.storage.stores.objects import FolderObjects, PatientObjects
from profiler.storage.stores.shared_store import open_shared, shared_faults, work_folder
from profiler.storage.tables.run_tables import write_samples

RECORDS = builders.records(builders.lora_vs_full_specs(["qwen2.5-0.5b"]))
ONE = RECORDS[0].trial_id


@pytest.fixture
def shared(tmp_path):
    """The folder that all machines have mounted."""
    return tmp_path / "mounted"


@pytest.fixture
def machine(tmp_path, shared, monkeypatch):
    monkeypatch.setattr(Leases, "_start_renewing", lambda self: None)

    def new(name):
        said = []
        address = address_of(f"file://{shared}")
        store = open_shared(address, tmp_path / name / "grid", lease_s=60.0, notify=said.append)
        return store, said

    return new


def publish(store, record):
    claim = store.claim(record.trial_id, wait=False)
    store.write(record)
    claim.release()


def test_a_record_is_seen_by_others_when_its_trial_is_released(machine, shared, tmp_path):
    (one, _), (other, _) = machine("a"), machine("b")
    claim = one.claim(ONE, wait=False)
    one.write(RECORDS[0])
    assert one.find(ONE) == RECORDS[0]
    assert other.find(ONE) is None
    assert other.claim(ONE, wait=False) is None
    assert other.claimed() == {ONE: Holder(generation=1, host=THIS_MACHINE)}
    write_memory_snapshot(snapshot_path(tmp_path / "a" / "grid", ONE), {"segments": []})
    claim.release()
    assert other.find(ONE) == RECORDS[0]
    assert other.has_snapshot(ONE)
    assert not other.has_snapshot(RECORDS[1].trial_id)
    assert other.read_all() == (RECORDS[0],)
    assert other.claimed() == {}
    assert not list((shared / CLAIMS).iterdir())
    assert not [path for path in (tmp_path / "a").rglob("*") if path.is_file()]


def test_a_record_is_published_after_its_other_files(machine, tmp_path, monkeypatch):
    """It marks the trial as done: a machine that ends before it lets another one run the trial."""
    store, _ = machine("a")
    grid, write, written = tmp_path / "a" / "grid", FolderObjects.write, []
    claim = store.claim(ONE, wait=False)
    store.write(RECORDS[0])
    records.RecordStore(records.rank_folder(grid, 0)).write(RECORDS[0])
    write_samples(grid, ONE, ())
    write_memory_snapshot(snapshot_path(grid, ONE), {"segments": []})
    monkeypatch.setattr(
        FolderObjects, "write", lambda self, name, content: (written.append(name), write(self, name, content))
    )
    claim.release()
    assert written[-1] == f"records/{ONE}.json"
    assert [name.partition("/")[0] for name in written] == ["ranks", "samples", "snapshots", "records"]


def test_a_trial_without_a_record_is_given_back_as_it_was(machine, shared):
    store, _ = machine("a")
    store.claim(ONE, wait=False).release()
    assert store.read_all() == ()
    assert not [path for path in shared.rglob("*") if path.is_file()]


def test_what_a_killed_machine_had_finished_is_published_when_it_starts_again(machine):
    (before, _), (other, _) = machine("a"), machine("b")
    before.write(RECORDS[0])  # killed between the record and its publication, after its claim ran out
    again, _ = machine("a")
    assert dict(again.find_many([ONE])) == {ONE: None}
    claim = again.claim(ONE, wait=False)
    assert again.find(ONE) == RECORDS[0]
    claim.release()
    assert other.find(ONE) == RECORDS[0]


def test_a_machine_that_has_lost_its_trial_leaves_its_result_out_and_says_so(machine, monkeypatch):
    store, said = machine("a")
    claim = store.claim(ONE, wait=False)
    store.write(RECORDS[0])
    monkeypatch.setattr(Leases, "is_held", lambda self, lease: False)
    claim.release()
    assert store.find(ONE) is None
    assert "was taken over by another machine" in said[0]


def test_many_are_found_together_and_news_are_known_without_a_look(machine):
    (one, _), (other, _) = machine("a"), machine("b")
    publish(one, RECORDS[0])
    ids = [record.trial_id for record in RECORDS]
    assert dict(other.find_many(ids)) == {**dict.fromkeys(ids), ONE: RECORDS[0]}
    publish(one, RECORDS[1])
    assert not other.is_news(RECORDS[1].trial_id)
    other._leases.renew_all()
    assert [trial_id for trial_id in ids if other.is_news(trial_id)] == [RECORDS[1].trial_id]


def test_a_damaged_or_misplaced_record_counts_as_not_run(machine, shared):
    store, said = machine("a")
    for record in RECORDS[:3]:
        publish(store, record)
    paths = [shared / "records" / f"{record.trial_id}.json" for record in RECORDS[:3]]
    paths[0].write_bytes(paths[0].read_bytes()[:-20])
    paths[1].write_bytes(paths[2].read_bytes())
    (shared / "records" / "notes.txt").write_text("not a record")
    assert store.read_all() == (RECORDS[2],)
    assert len(said) == 2
    assert all("is not a valid record (" in sentence for sentence in said)


def test_a_record_of_a_later_version_is_refused(machine, monkeypatch):
    store, _ = machine("a")
    with monkeypatch.context() as later:
        later.setattr(store._local, "_form", replace(TRIALS, since=TRIALS.since + 1))
        publish(store, RECORDS[0])
    with pytest.raises(UsageError, match="newer version of this program"):
        store.read_all()


def test_tables_and_pages_are_shared_and_old_tables_are_not_carried_over(machine, shared, tmp_path):
    store, _ = machine("a")
    folder = tmp_path / "a" / "grid"
    (folder / "figures").mkdir(parents=True)
    for name in ("runs.parquet", "report.html", "figures/a.png", "notes.txt"):
        (folder / name).write_text(name)
    store.share()
    assert {path.relative_to(shared).as_posix() for path in shared.rglob("*") if path.is_file()} == {
        "runs.parquet",
        "report.html",
        "figures/a.png",
    }
    (shared / "samples").mkdir()
    (shared / "samples" / f"{ONE}.parquet").write_text("samples of another machine")
    store.gather()
    assert not (folder / "runs.parquet").exists()
    assert (folder / "samples" / f"{ONE}.parquet").read_text() == "samples of another machine"


# ---- addresses and their faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "scheme", "path"),
    [
        ("s3://bucket", Scheme.S3, "bucket"),
        ("s3://bucket/a/b/", Scheme.S3, "bucket/a/b"),
        ("gs://bucket/a", Scheme.GS, "bucket/a"),
        ("file:///shared/a", Scheme.FILE, "/shared/a"),
    ],
)
def test_addresses(text, scheme, path):
    address = address_of(text)
    assert (address.scheme, address.path, str(address)) == (scheme, path, text.rstrip("/"))
    assert str(address / "grid") == f"{text.rstrip('/')}/grid"


@pytest.mark.parametrize(
    "text", ["ftp://a/b", "s3://", "s3:///a", "s3://a//b", "s3://a/../b", "file://a", "file:///", "://"]
)
def test_what_is_no_address(text):
    assert address_of(text) is None


def test_different_addresses_have_different_folders(tmp_path):
    one, other = address_of("s3://a/b/grid"), address_of("s3://a/c/grid")
    assert work_folder(one, tmp_path) == work_folder(one, tmp_path) != work_folder(other, tmp_path)
    assert work_folder(one, tmp_path).name == "grid"


def test_a_store_that_can_be_written_has_no_fault_and_is_left_as_it_was(shared):
    assert shared_faults(address_of(f"file://{shared}"), writes=True) == []
    assert not [path for path in shared.rglob("*") if path.is_file()]


def test_a_store_without_records_cannot_be_reported(shared):
    (fault,) = shared_faults(address_of(f"file://{shared}"), writes=False)
    assert "results cannot be read there (there are no records)" in fault.sentence()


def test_a_store_that_does_not_answer_is_named_in_time(monkeypatch):
    import threading

    monkeypatch.setattr(shared_store, "_objects", lambda address: threading.Event().wait())
    (fault,) = shared_faults(address_of("file:///x"), writes=True, answer_s=0.05)
    assert "it did not answer within 0.05 s" in fault.sentence()


def test_a_store_that_creates_what_exists_is_refused(shared, monkeypatch):
    monkeypatch.setattr(FolderObjects, "create", lambda self, name, content: self.write(name, content) or True)
    (fault,) = shared_faults(address_of(f"file://{shared}"), writes=True)
    assert "it does not create objects conditionally, so trials cannot be claimed" in fault.sentence()


def test_a_store_that_may_not_be_written_is_named(shared, monkeypatch):
    def refuse(self, name, content):
        raise PermissionError(13, "Access Denied")

    monkeypatch.setattr(FolderObjects, "create", refuse)
    (fault,) = shared_faults(address_of(f"file://{shared}"), writes=True)
    assert fault.sentence() == (
        f"results_dir=file://{shared}: results cannot be written there (Access Denied). Check the address, the network "
        "and the credentials."
    )


@pytest.mark.parametrize(("address", "extra"), [("s3://b/c", Extra.S3), ("gs://b/c", Extra.GCS)])
def test_a_missing_library_is_named_with_its_extra(monkeypatch, address, extra):
    monkeypatch.setattr("profiler.domain.machines.extras.find_spec", lambda name: None)
    (fault,) = shared_faults(address_of(address), writes=True)
    assert install_hint(extra) in fault.sentence()


# ---- objects ---------------------------------------------------------------------------------------------------------


class Failing:
    """A store that fails a number of times, in a way."""

    def __init__(self, times, error=None):
        self.times, self.error, self.made = times, error or ConnectionError(111, "refused"), {}

    def create(self, name, content):
        existed = name in self.made
        self.made.setdefault(name, content)  # it arrives, although the answer is lost
        self._fail()
        return not existed

    def read(self, name):
        self._fail()
        return self.made.get(name)

    def _fail(self):
        self.times -= 1
        if self.times >= 0:
            raise self.error


def patient(objects, persist_s=30.0):
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds

    return PatientObjects(objects, address="s3://b", persist_s=persist_s, clock=lambda: now[0], sleep=sleep), now


def test_what_passes_is_tried_again_and_what_lasts_is_an_error():
    objects, now = patient(Failing(3))
    assert objects.read("x") is None
    assert 0 < now[0] < 5
    objects, now = patient(Failing(10**6))
    with pytest.raises(StorageError, match=r"^s3://b/x: could not be read \(refused\)\.$"):
        objects.read("x")
    assert now[0] <= 30.0


def test_what_is_not_allowed_is_not_tried_again():
    objects, now = patient(Failing(10**6, PermissionError(13, "Access Denied")))
    with pytest.raises(StorageError, match="Access Denied"):
        objects.read("x")
    assert now[0] == 0.0


def test_an_object_whose_answer_was_lost_is_recognised():
    objects, _ = patient(Failing(1))
    assert objects.create("x", b"mine")
    assert not objects.create("x", b"another's")


def test_of_many_writers_one_creates_a_file(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: FolderObjects(tmp_path).create("claims/x", b"%d" % n), range(40)))
    assert sum(found) == 1
    assert list(FolderObjects(tmp_path).list("claims/")) == ["claims/x"]


def test_the_records_of_ranks_are_published_with_their_trial_and_gathered(machine, shared, tmp_path):
    (one, _), (other, _) = machine("a"), machine("b")
    (trial,) = builders.records([replace(RECORDS[0].spec, num_processes=2)])
    name = trial.trial_id
    for rank in (0, 1):
        folder = records.rank_folder(tmp_path / "a" / "grid", rank)
        records.RecordStore(folder).write(trial)
        write_memory_snapshot(snapshot_path(folder, name), {"segments": []})
        (folder / "records" / f"{name}.stderr").write_text("noise")
    publish(one, trial)
    names = sorted(path.relative_to(shared).as_posix() for path in shared.rglob("*") if path.is_file())
    assert [name for name in names if name.startswith("ranks/")] == [
        f"ranks/{rank}/{kind}" for rank in (0, 1) for kind in (f"records/{name}.json", f"snapshots/{name}.pickle")
    ]
    assert not list((tmp_path / "a").rglob("*.json"))
    other.gather()
    gathered = sorted(path.relative_to(tmp_path / "b" / "grid").as_posix() for path in (tmp_path / "b").rglob("*.json"))
    assert gathered == [f"ranks/{rank}/records/{name}.json" for rank in (0, 1)]
    peak = trial.outcome.peaks.allocated_bytes
    (peaks,) = rank_peaks(tmp_path / "b" / "grid")
    assert peaks.allocated_bytes == (peak, peak)
