"""Records survive a disk that is full, a hand that edits and a cut of power; nothing else is believed."""

import json
import subprocess
import sys
from dataclasses import fields, replace

import builders
import pytest

from profiler.domain.runs.outcome import Status, Versions
from profiler.domain.runs.readings import CategoryShare, OutOfMemory, PhasePeak, StepInstant, StepPeak, TensorGroup
from profiler.domain.trials.trial import TrialSpec
from profiler.storage.files import typed_json
from profiler.storage.files.trial_files import snapshot_path
from profiler.storage.files.typed_json import JsonMismatchError, from_json, to_json
from profiler.storage.records.outcome_fields import OUTCOME_FIELDS, flat_values, outcome_from_flat
from profiler.storage.records.record_folder import TRIALS
from profiler.storage.records.versioned import NewerRecordError, RecordFormat, installed_versions
from profiler.storage.stores.record_store import RecordStore
from profiler.storage.tables.run_tables import samples_path


@pytest.fixture
def store(tmp_path):
    return RecordStore(tmp_path)


def made(**changes):
    return builders.records([builders.spec(**changes)])[0]


@pytest.mark.parametrize(
    "record",
    [
        made(),
        made(model="qwen2.5-14b"),
        builders.record(builders.lora(), outcome=builders.failed()),
        builders.record(builders.spec(), outcome=builders.on_cpu()),
    ],
    ids=["ok", "oom", "failed", "cpu"],
)
def test_what_was_written_is_read(store, record):
    store.write(record)
    assert store.find(record.trial_id) == record
    assert store.read_all() == (record,)


def test_an_unknown_trial_is_none_and_an_empty_store_has_none(store):
    assert store.find("nowhere") is None
    assert store.read_all() == ()


def test_a_second_write_replaces_the_first(store):
    first = made()
    second = replace(first, outcome=builders.failed(Status.KILLED))
    store.write(first)
    store.write(second)
    assert store.read_all() == (second,)


def test_read_all_is_in_the_order_of_trial_ids(store):
    written = builders.records(builders.lora_vs_full_specs())
    for record in written:
        store.write(record)
    assert [record.trial_id for record in store.read_all()] == sorted(record.trial_id for record in written)


@pytest.mark.parametrize("keep", [0, 1, 300, -1])
def test_a_torn_record_is_set_aside_and_counts_as_absent(store, keep):
    record = made()
    store.write(record)
    path = store.path(record.trial_id)
    content = path.read_bytes()
    path.write_bytes(content[:keep])
    assert store.find(record.trial_id) is None
    assert not path.exists()
    kept = list((path.parent / "set_aside").iterdir())
    assert [file.read_bytes() for file in kept] == [content[:keep]]
    store.write(record)
    assert store.read_all() == (record,)


def test_any_flipped_byte_is_noticed_or_changes_nothing(store):
    record = made()
    store.write(record)
    path = store.path(record.trial_id)
    content = path.read_bytes()
    for position in range(0, len(content), 37):
        flipped = bytearray(content)
        flipped[position] ^= 0x01
        path.write_bytes(bytes(flipped))
        assert store.find(record.trial_id) in (None, record)


def test_a_record_of_an_earlier_layout_is_read(store):
    # Earlier versions wrote one key per line, in the order of the record.
    record = made()
    store.write(record)
    path = store.path(record.trial_id)
    stored = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(stored.items())), indent=1))
    assert store.read_all() == (record,)


def test_reading_a_record_does_not_write_it_again_for_its_checksum(store, monkeypatch):
    record = made()
    store.write(record)
    monkeypatch.setattr(typed_json, "canonical", lambda content: pytest.fail("slow"))
    assert store.find(record.trial_id) == record


def test_looking_for_newer_records_reads_none_of_the_others(store, monkeypatch):
    store.write(made())
    (store.path("x").parent / "notes.json").write_text('{"schema_version": ' + "9" * 5000 + "}")
    parsed = []
    monkeypatch.setattr(RecordFormat, "parse", lambda _, content: parsed.append(content[:4]))
    assert store.faults() == []
    assert parsed == [b'{"sc']


def test_an_edited_value_is_set_aside(store):
    record = made()
    store.write(record)
    path = store.path(record.trial_id)
    path.write_text(path.read_text().replace('"ok"', '"oom"'))
    assert store.read_all() == ()


def test_who_adds_a_field_raises_the_version():
    # Or every record that is there already is set aside, and every finished trial runs again.
    parts = (PhasePeak, StepPeak, CategoryShare, StepInstant, TensorGroup, OutOfMemory, Versions)
    sizes = [len(OUTCOME_FIELDS), *(len(fields(part)) for part in parts)]
    assert (TRIALS.version, sizes) == (9, [43, 9, 6, 2, 2, 9, 6, 10])


def test_a_record_under_another_trials_name_is_set_aside(store):
    record = made()
    store.write(record)
    store.path(record.trial_id).rename(store.path("0123456789abcdef"))
    assert store.find("0123456789abcdef") is None


def test_two_bad_records_of_one_trial_are_both_kept(store):
    record = made()
    for _ in range(2):
        store.write(record)
        store.path(record.trial_id).write_text("torn")
        assert store.find(record.trial_id) is None
    assert len(list((store.path("x").parent / "set_aside").iterdir())) == 2


def test_what_a_killed_writer_left_is_removed_and_nothing_else(store, tmp_path):
    record, other = made(), made(seed=1)
    samples, snapshot = samples_path(tmp_path, record.trial_id), snapshot_path(tmp_path, record.trial_id)
    for path in (store.path(record.trial_id), store.path(other.trial_id), samples, snapshot):
        path.parent.mkdir(exist_ok=True)
        path.with_name(f".{path.name}.123.part").write_text("half a rec")
    for each in (record, other):
        store.write(each)
    store.remove_partial(record.trial_id)
    assert not list(samples.parent.iterdir())
    assert not list(snapshot.parent.iterdir())
    left = sorted(path.name for path in store.path("x").parent.iterdir())
    assert left == sorted([f".{other.trial_id}.json.123.part", f"{record.trial_id}.json", f"{other.trial_id}.json"])


@pytest.fixture
def lines(tmp_path):
    """A store with a record, and what it says."""
    lines = []
    store = RecordStore(tmp_path, notify=lines.append)
    store.write(made())
    return store, store.path(made().trial_id), lines


@pytest.mark.parametrize("read", [lambda store: store.find(made().trial_id), lambda store: store.read_all()])
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda text: text[:40], "Unterminated string"),
        (lambda text: text.replace('"ok"', '"oom"'), "the checksum does not match"),
        (lambda text: "{}", "not a record file"),
        (lambda text: "[" * 200_000, "nested more than 64 deep"),
    ],
    ids=["torn", "edited", "another file", "too deep"],
)
def test_a_line_says_what_is_set_aside_where_and_why(lines, read, damage, reason):
    store, path, lines = lines
    path.write_text(damage(path.read_text()))
    assert not read(store)
    (line,) = lines
    assert line.startswith(
        f"Set aside as {path.parent}/set_aside/{path.stem}.0.json: {path.name} is not a valid record"
    )
    assert reason in line
    assert line.endswith("so its trial counts as not run.")
    assert not read(store)
    assert len(lines) == 1


def test_who_does_not_listen_reads_it_on_standard_error(tmp_path, capsys):
    store = RecordStore(tmp_path)
    store.write(made())
    store.path(made().trial_id).write_text("torn")
    assert store.read_all() == ()
    assert capsys.readouterr().err.startswith("Set aside as ")


def _of_version(path, version, **more):
    stored = json.loads(path.read_text())
    content = {"schema_version": version, "record": {**stored["record"], **more}}
    path.write_text(json.dumps({"checksum": typed_json.checksum_of(content), **content}))


def _with_another_envelope(path):
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({**stored, "schema_version": TRIALS.version + 1, "signature": "x"}))


@pytest.mark.parametrize(
    "change",
    [
        lambda path: _of_version(path, TRIALS.version + 1),
        lambda path: _of_version(path, 99, surprise=1),
        _with_another_envelope,
    ],
)
@pytest.mark.parametrize("read", [lambda store: store.find(made().trial_id), lambda store: store.read_all()])
def test_a_record_of_a_newer_version_is_refused_and_not_touched(lines, change, read):
    store, path, lines = lines
    change(path)
    before = path.read_bytes()
    with pytest.raises(NewerRecordError) as caught:
        read(store)
    assert caught.value.exit_code == 2
    message = str(caught.value)
    assert message.startswith(f"record={path}: it was written by a newer version of this program (record schema ")
    assert f"this one reads up to {TRIALS.version}). Update this program, or choose another results_dir" in message
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert lines == []


def test_newer_records_are_one_fault_before_anything_starts(lines):
    store, path, _ = lines
    assert store.faults() == []
    store.write(made(seed=1))
    for each in sorted(path.parent.glob("*.json")):
        _of_version(each, TRIALS.version + 1)
    (fault,) = store.faults()
    assert "it, and 1 more, was written by a newer version" in fault.sentence()


def test_a_record_that_cannot_be_opened_is_a_fault_and_not_set_aside(lines, monkeypatch):
    store, path, lines = lines

    def refuse(_, *, most_bytes):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("profiler.storage.stores.record_store.read_bytes", refuse)
    (fault,) = store.faults()
    assert fault.sentence() == (
        f"record={path}: it cannot be read (Permission denied). Check its permissions and the disk."
    )
    assert path.exists()
    assert lines == []


def test_an_edited_record_is_not_called_newer(lines):
    store, path, lines = lines
    path.write_text(path.read_text().replace(f'"schema_version":{TRIALS.version}', '"schema_version":99'))
    assert store.faults() == []
    assert store.read_all() == ()
    assert "the checksum does not match" in lines[0]


def test_files_that_are_no_records_are_left_alone(lines):
    store, path, lines = lines
    content = path.read_bytes()
    files = {
        "notes.json": b"remember the milk",
        "package.json": b"{}",
        f"{path.stem} (copy).json": content,
        f"{path.stem}.json.bak": content,
        "0123456789ABCDEF.json": b"[]",
    }
    for name, each in files.items():
        (path.parent / name).write_bytes(each)
    (path.parent / "folder.json").mkdir()
    assert store.read_all() == (made(),)
    assert store.faults() == []
    assert {name: (path.parent / name).read_bytes() for name in files} == files
    assert lines == []


def test_what_was_set_aside_is_never_overwritten(lines):
    store, path, _ = lines
    folder = path.parent / "set_aside"
    folder.mkdir()
    (folder / f"{path.stem}.1.json").write_text("of an earlier day")
    for _ in range(2):
        path.write_text("torn")
        store.read_all()
    assert (folder / f"{path.stem}.1.json").read_text() == "of an earlier day"
    assert len(list(folder.iterdir())) == 3


FULL_DISK = """
import resource, sys
from pathlib import Path
sys.path[:0] = {path!r}
import builders
from profiler.storage.files.atomic import StorageError
from profiler.storage.files.trial_files import snapshot_path
from profiler.storage.records.record_folder import TRIALS
from profiler.storage.stores.record_store import RecordStore
record = builders.records([builders.spec()])[0]
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    RecordStore(Path({folder!r})).write(record)
except StorageError as error:
    print(error)
    sys.exit(7)
"""


def test_a_full_disk_is_reported_in_one_sentence_and_leaves_nothing(store, tmp_path):
    before = made()
    store.write(before)
    earlier = store.path(before.trial_id).read_bytes()
    script = FULL_DISK.format(path=sys.path, folder=str(tmp_path))
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert child.returncode == 7, child.stderr
    assert "could not be written (File too large)" in child.stdout
    assert [path.name for path in store.path("x").parent.iterdir()] == [f"{before.trial_id}.json"]
    assert store.path(before.trial_id).read_bytes() == earlier


@pytest.mark.parametrize(
    "change",
    [
        lambda outcome: outcome.pop("wall_s"),
        lambda outcome: outcome.update(surprise=1),
        lambda outcome: outcome.update(status="great"),
        lambda outcome: outcome.update(parameters=True),
        lambda outcome: outcome.update(parameters=1.5),
        lambda outcome: outcome.update(phases={}),
        lambda outcome: outcome["phases"][0].update(phase=None),
    ],
)
def test_json_of_another_shape_is_refused(change):
    outcome = json.loads(json.dumps({key: to_json(value) for key, value in flat_values(made().outcome).items()}))
    change(outcome)
    with pytest.raises(JsonMismatchError):
        outcome_from_flat(outcome, defaults=False)


def test_a_class_may_read_itself():
    assert from_json(TrialSpec, {}, readers={TrialSpec: lambda _: builders.spec()}) == builders.spec()


def test_installed_versions_import_nothing():
    script = (
        "import sys; from profiler.storage.records.versioned import installed_versions as v; "
        "print(v()); sys.exit(sum(n in sys.modules for n in ('torch', 'trl', 'transformers', 'peft')))"
    )
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert child.returncode == 0
    assert installed_versions().trl is not None


def test_a_mismatch_says_where():
    outcome = json.loads(json.dumps({key: to_json(value) for key, value in flat_values(made().outcome).items()}))
    outcome["phases"][0]["phase"] = "lunch"
    with pytest.raises(JsonMismatchError, match=r"^phases\.phase: 'lunch' is not one of load, "):
        outcome_from_flat(outcome, defaults=False)
