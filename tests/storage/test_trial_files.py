"""Names from a store, a slot or a folder are matched: nothing is written or read outside the folder of the grid."""

import os
from dataclasses import replace
from pathlib import Path

import builders
import pytest

from profiler.domain.machines.engines import address_of
from profiler.execution.processes.child import last_lines, redirect_output
from profiler.storage.files.atomic import StorageError, UnforeseenError, last_resort
from profiler.storage.files.trial_files import trial_file
from profiler.storage.records.record_folder import copy_ranks, rank_peaks
from profiler.storage.stores.leases import Leases
from profiler.storage.stores.objects import FolderObjects
from profiler.storage.stores.record_store import RecordStore, rank_folder
from profiler.storage.stores.shared_records import SharedRecords
from profiler.storage.stores.shared_store import open_shared

RECORDS = builders.records(builders.lora_vs_full_specs(["qwen2.5-0.5b"]))
ONE, TWO = RECORDS[0].trial_id, RECORDS[1].trial_id
(ON_TWO_GPUS,) = builders.records([replace(RECORDS[0].spec, num_processes=2)])

NAMES_OF_TRIALS = [
    f"records/{ONE}.json",
    f"records/{ONE}.stderr",
    f"samples/{ONE}.parquet",
    f"snapshots/{ONE}.pickle",
    f"ranks/0/records/{ONE}.json",
    f"ranks/4095/samples/{ONE}.parquet",
]

OTHER_NAMES = [
    "samples/../../outside",
    f"samples/../../{ONE}.parquet",
    f"samples/sub/{ONE}.parquet",
    f"/samples/{ONE}.parquet",
    f"../samples/{ONE}.parquet",
    f"samples//{ONE}.parquet",
    f"./samples/{ONE}.parquet",
    f"samples/{ONE}.parquet/..",
    f"samples/{ONE}.parquet\n",
    f"samples/{ONE}.json",
    f"samples/{ONE}",
    f"samples/{ONE.upper()}x.parquet",
    "samples/x.parquet",
    "samples/..parquet",
    f"records/{ONE}.py",
    f"records\\{ONE}.json",
    f"ranks/../records/{ONE}.json",
    f"ranks/00/records/{ONE}.json",
    f"ranks/5000000000/records/{ONE}.json",
    f"ranks/-1/records/{ONE}.json",
    f"ranks/\u0663/records/{ONE}.json",
    f"figures/{ONE}.json",
    "report.html",
    "",
]


@pytest.mark.parametrize("name", NAMES_OF_TRIALS)
def test_the_files_of_a_trial_are_known_by_their_names(name):
    found = trial_file(name)
    assert found is not None
    assert found.trial_id == ONE
    assert (found.rank is not None) == name.startswith("ranks/")


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_other_names_are_not_those_of_a_trial(name):
    assert trial_file(name) is None


class NamedObjects:
    """A store whose objects have any names, as keys of S3 have; a `FolderObjects` cannot hold them."""

    def __init__(self, contents):
        self.contents = dict(contents)

    def read(self, name):
        return self.contents.get(name)

    def read_many(self, names):
        return {name: self.contents[name] for name in names if name in self.contents}

    def write(self, name, content):
        self.contents[name] = content

    def create(self, name, content):
        return self.contents.setdefault(name, content) is content

    def remove(self, name):
        self.contents.pop(name, None)

    def list(self, prefix):
        return {name: "1" for name in self.contents if name.startswith(prefix)}


def files_below(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_store_writes_only_files_of_trials_to_this_machine(tmp_path):
    contents = dict.fromkeys([*NAMES_OF_TRIALS, *(name for name in OTHER_NAMES if name)], b"of a stranger")
    objects = NamedObjects(contents)
    folder = tmp_path / "machine" / "cache" / "grid"
    store = SharedRecords(
        objects, impatient=objects, folder=folder, address="s3://b", lease_s=60.0, notify=lambda _: None
    )
    store.gather()
    gathered = [f"samples/{ONE}.parquet", f"ranks/0/records/{ONE}.json", f"ranks/4095/samples/{ONE}.parquet"]
    assert files_below(tmp_path) == sorted(f"machine/cache/grid/{name}" for name in gathered)


def test_only_records_of_a_store_count_as_records(tmp_path):
    objects = NamedObjects(
        {f"records/{name}": b"{}" for name in (f"{ONE}.json", "x.json", f"../{TWO}.json", "..json", f"{TWO}.stderr")}
    )
    asked = []
    objects.read_many = lambda names: asked.extend(names) or {}
    store = SharedRecords(objects, impatient=objects, folder=tmp_path, address="", lease_s=1, notify=print)
    assert store.read_all() == ()
    assert asked == [f"records/{ONE}.json"]


@pytest.mark.parametrize(
    "odd", ["zzzzzz", "", "1", "000001.x", "9999999999999999999999", "\u0660\u0660\u0660\u0660\u0660\u0661"]
)
def test_a_strange_claim_neither_takes_a_trial_nor_breaks_the_sweep(odd):
    objects = NamedObjects({f"claims/{ONE}.{odd}": b"?"})
    leases = Leases(objects=objects, impatient=objects, lease_s=60.0)
    leases._start_renewing = lambda: None
    lease = leases.take(ONE)
    assert lease is not None
    assert lease.generation == 1
    assert leases.is_held(lease)
    leases.renew_all()
    leases.end(lease)
    assert list(objects.contents) == [f"claims/{ONE}.{odd}"]


def test_links_in_a_mounted_store_are_not_followed(tmp_path):
    shared, outside = tmp_path / "shared", tmp_path / "outside"
    (outside / "records").mkdir(parents=True)
    (outside / "records" / f"{TWO}.json").write_text("private")
    objects = FolderObjects(shared)
    objects.write(f"records/{ONE}.json", b"one")
    (shared / "records" / "up").symlink_to(shared)
    (shared / "records" / "out").symlink_to(outside)
    (shared / "records" / f"{TWO}.json").symlink_to(outside / "records" / f"{TWO}.json")
    assert set(objects.list("records/")) == {f"records/{ONE}.json"}


@pytest.mark.parametrize("made_again", [False, True])
def test_output_of_a_worker_never_goes_through_a_link(tmp_path, made_again):
    """A link that was there is removed; one that is made again before the file is opened ends the worker."""
    private, path = tmp_path / "private", tmp_path / "records" / f"{ONE}.stderr"
    private.write_text("a user's own file\n")
    path.parent.mkdir()
    path.symlink_to(private)
    assert last_lines(path) == ""
    pid = os.fork()
    if pid == 0:
        if made_again:
            Path.unlink = lambda *_, **__: None
        try:
            redirect_output(str(path))
            os.write(1, b"of the worker\n")
        except FileExistsError:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == made_again
    assert private.read_text() == "a user's own file\n"
    if not made_again:
        assert not path.is_symlink()
        assert last_lines(path) == "of the worker"


def test_a_traceback_never_goes_through_a_link(tmp_path):
    private, path = tmp_path / "private", tmp_path / "x.stderr"
    private.write_text("")
    path.symlink_to(private)
    with pytest.raises(UnforeseenError, match="RuntimeError: the reason"), last_resort("worker", file=path):
        raise RuntimeError("the reason")
    assert private.read_text() == ""


def test_ranks_with_strange_names_are_left_out(tmp_path):
    """`ranks/5000000000` would have made a list of five billion peaks."""
    for rank in (0, 1):
        RecordStore(rank_folder(tmp_path, rank)).write(ON_TWO_GPUS)
    written = RecordStore(rank_folder(tmp_path, 0)).path(ON_TWO_GPUS.trial_id)
    for strange in ("2", "5000000000", "00", "x"):
        (tmp_path / "ranks" / strange / "records").mkdir(parents=True)
        (tmp_path / "ranks" / strange / "records" / written.name).write_bytes(written.read_bytes())
    (peaks,) = rank_peaks(tmp_path)
    assert len(peaks.allocated_bytes) == 2


def test_ranks_are_copied_as_files_and_not_through_links(tmp_path):
    one, into, private = tmp_path / "one", tmp_path / "into", tmp_path / "private"
    private.write_text("private")
    RecordStore(rank_folder(one, 0)).write(RECORDS[0])
    (one / "ranks" / "0" / "records" / "odd name.json").write_text("{}")
    target = into / "ranks" / "0" / "records" / f"{ONE}.json"
    target.parent.mkdir(parents=True)
    target.symlink_to(tmp_path / "made through a link")
    copy_ranks([one], into)
    assert not (tmp_path / "made through a link").exists()
    assert [path.name for path in target.parent.iterdir()] == [f"{ONE}.json"]
    assert not target.is_symlink()
    (one / "ranks" / "0" / "records" / f"{TWO}.json").symlink_to(private)
    with pytest.raises(StorageError, match="could not be read"):
        copy_ranks([one], into)


def test_a_shared_store_still_brings_what_it_should(tmp_path, monkeypatch):
    monkeypatch.setattr(Leases, "_start_renewing", lambda self: None)
    address = address_of(f"file://{tmp_path / 'shared'}")
    objects = FolderObjects(tmp_path / "shared")
    objects.write(f"samples/{ONE}.parquet", b"samples")
    store = open_shared(address, tmp_path / "a", lease_s=60.0, notify=lambda _: None)
    store.gather()
    assert files_below(tmp_path / "a") == [f"samples/{ONE}.parquet"]
