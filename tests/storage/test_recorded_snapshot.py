"""A snapshot of somebody else is read without running it; whatever else a file is, one sentence says so."""

import gzip
import os
import pickle
import resource
import struct
import sys
from collections import OrderedDict
from pathlib import Path

import pytest

from profiler.domain.errors import UsageError
from profiler.storage.foreign import recorded_snapshot
from profiler.storage.foreign.recorded_snapshot import load_snapshot, snapshot_files

PLAIN = {"segments": [(1, 2.5, "text", True, None)], "device_traces": [[{"action": "alloc", "size": 1 << 40}]]}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "snapshot.pickle"


def refused(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        load_snapshot(path)
    sentence = str(caught.value)
    assert sentence.startswith(f"snapshot={path}: ")
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_containers_numbers_and_text_are_read(path, protocol):
    path.write_bytes(pickle.dumps(PLAIN, protocol=protocol))
    assert load_snapshot(path) == PLAIN
    path.write_bytes(gzip.compress(pickle.dumps(PLAIN, protocol=protocol)))
    assert load_snapshot(path) == PLAIN


def test_a_large_snapshot_is_read_whole(path):
    entries = [{"action": "alloc", "addr": number << 20, "size": number, "stream": 0} for number in range(60_000)]
    path.write_bytes(pickle.dumps(entries))
    assert path.stat().st_size > 1 << 20
    assert load_snapshot(path) == entries


class Malicious:
    def __init__(self, witness: Path) -> None:
        self.command = f"touch {witness}"

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("packed", [False, True])
def test_a_malicious_pickle_is_not_run(path, tmp_path, packed):
    witness = tmp_path / "witness"
    content = pickle.dumps({"segments": [Malicious(witness)]})
    path.write_bytes(gzip.compress(content) if packed else content)
    sentence = refused(path)
    assert "refers to posix.system" in sentence
    assert "nothing of it was run" in sentence
    assert not witness.exists()
    # It does what it is feared for.
    pickle.loads(content)
    assert witness.exists()


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (pickle.dumps(OrderedDict()), "collections.OrderedDict"),
        (pickle.dumps(Path("x")), "pathlib"),
        (pickle.dumps(print), "builtins.print"),
        (b"(S'true'\nios\nsystem\n.", "os.system"),
        (b"cbuiltins\neval\n(S'1'\ntR.", "builtins.eval"),
        (b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93.", "builtins.eval"),
        (b"\x80\x02NQ.", "an object outside of it"),
        (b"Pname\n.", "an object outside of it"),
    ],
)
def test_whatever_is_to_be_imported_is_refused(path, content, name):
    path.write_bytes(content)
    assert f"refers to {name}" in refused(path)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "is empty"),
        (b"hello", "is not a pickle"),
        (b"\n", "is not a pickle"),
        (b"\x80", "pickle data was truncated"),
        (b"\x80\x63", "is not a pickle"),
        (pickle.dumps(PLAIN)[:-30], "pickle data was truncated"),
        (pickle.dumps(PLAIN, protocol=2)[:-3], "ends in the middle"),
        (b"\x80\x02.", "is not a pickle"),
        (b"\x80\x02\x82\x01.", "unregistered extension code"),
        (b"\x80\x02]K\x01b.", "is not a pickle"),
        (b"I" + b"9" * 5000 + b"\n.", "is not a pickle"),
        (b"PK\x03\x04", "is an archive, as torch.save writes it"),
        (gzip.compress(pickle.dumps(PLAIN), mtime=0)[:-12], "ends in the middle"),
        (b"\x1f\x8b" + b"x" * 40, "cannot be read"),
        (gzip.compress(b"", mtime=0), "ends in the middle"),
    ],
)
def test_a_damaged_file_is_named(path, content, part):
    path.write_bytes(content)
    assert part in refused(path)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux only")
@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02]r\xff\xff\xff\xff.",  # a table of 2**32 remembered objects
        b"\x80\x04\x8e" + struct.pack("<Q", 50 << 30) + b".",  # bytes of 50 GiB
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b".",
        b"\x80\x04\x95" + struct.pack("<Q", 50 << 30) + b".",  # a frame of 50 GiB
    ],
)
def test_a_file_that_asks_for_far_more_memory_than_it_has_is_refused(path, content):
    before = resource.getrlimit(resource.RLIMIT_AS)
    path.write_bytes(content)
    assert "asks for more memory" in refused(path) or "is not a pickle" in refused(path)
    assert resource.getrlimit(resource.RLIMIT_AS) == before


@pytest.mark.parametrize("content", [b"]" * 200_000 + b"a" * 199_999, b"N" + b"\x85" * 200_000], ids=["list", "tuple"])
def test_a_deeply_nested_file_is_read(path, content):
    """Reading does not recurse; `read_history` says that it is no snapshot."""
    path.write_bytes(b"\x80\x02" + content + b".")
    assert len(load_snapshot(path)) == 1


def test_an_enormous_file_is_refused_before_it_is_read(path):
    with path.open("wb") as file:
        file.truncate(1 << 42)
    assert "has more than 4 GiB" in refused(path)


def test_a_small_file_that_unpacks_to_an_enormous_one_is_refused(path, monkeypatch):
    monkeypatch.setattr(recorded_snapshot, "MOST_BYTES", 1 << 20)
    path.write_bytes(gzip.compress(pickle.dumps(list(range(1 << 20))), compresslevel=1))
    assert path.stat().st_size < 4 << 20
    assert "has more than" in refused(path)


def test_what_is_no_file_is_named(tmp_path):
    assert "no such file" in refused(tmp_path / "missing.pickle")
    assert "it is a folder" in refused(tmp_path)
    pipe = tmp_path / "pipe.pickle"
    os.mkfifo(pipe)
    assert "is not a regular file" in refused(pipe)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(path):
    path.write_bytes(pickle.dumps(PLAIN))
    path.chmod(0)
    assert "cannot be read (Permission denied)" in refused(path)


def test_the_snapshots_of_a_folder_are_found_by_their_endings(tmp_path):
    for name in ("b.pickle", "a.pkl", "c.pickle.gz", "d.txt", "e.pickle.part"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "inner.pickle").mkdir()
    assert [path.name for path in snapshot_files(tmp_path)] == ["a.pkl", "b.pickle", "c.pickle.gz"]


def test_a_folder_without_snapshots_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"has no file that ends in \.pickle, \.pkl"):
        snapshot_files(tmp_path)
    with pytest.raises(UsageError, match="cannot be read"):
        snapshot_files(tmp_path / "missing")
