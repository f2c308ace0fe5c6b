"""One contract for all stores of records: older versions are read with defaults, newer ones are refused by name."""

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import builders
import pytest
from test_every_field import filled, lawful

from profiler.config.trials.identity import ADDED_KEYS
from profiler.domain.errors import UsageError
from profiler.domain.runs.other_runs import MonitoredRun
from profiler.domain.runs.outcome import Outcome
from profiler.domain.trials.trial import TrialSpec
from profiler.storage.files.atomic import StorageError
from profiler.storage.files.typed_json import to_json, with_checksum
from profiler.storage.records.outcome_fields import _PARTS, OUTCOME_FIELDS
from profiler.storage.records.record_folder import MONITORED, SCRIPTS, TRIALS, RecordFolder
from profiler.storage.records.versioned import NewerSchemaError, RecordFormat
from profiler.storage.stores.record_store import RecordStore

SHAPES = Path(__file__).with_name("record_shapes.json")
"""The names of all stored fields, by kind and version."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """One kind of record, and its store."""

    form: RecordFormat
    store: Callable[..., RecordFolder]


STORES = {
    "trial": Kept(form=TRIALS, store=RecordStore),
    "script": Kept(form=SCRIPTS, store=partial(RecordFolder, form=SCRIPTS)),
    "monitored": Kept(form=MONITORED, store=partial(RecordFolder, form=MONITORED)),
}

KINDS = {name: kept.form.kind for name, kept in STORES.items()}


def full(name: str) -> Any:
    """A record in which no value is a default."""
    found = filled(KINDS[name], count(1000))
    if name == "trial":
        changed = builders.changed(found.outcome, peak_allocated_bytes=1_000_000)
        return replace(lawful(replace(found, outcome=changed)), trial_id="0" * 16)
    return replace(found, run_id="0" * 16)


def stored(name: str) -> dict[str, Any]:
    return json.loads(json.dumps(STORES[name].form.as_json(full(name))))


def default_of(field) -> Any:
    """The default of a field as JSON; `MISSING` without one."""
    if field.default is not MISSING:
        return to_json(field.default)
    return MISSING if field.default_factory is MISSING else to_json(field.default_factory())


Place = tuple[str, ...]
"""Names of fields, from the outermost; those in a sequence are in all of its parts."""


def optional(kind: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Yield each stored field with a default, and the default."""
    if get_origin(kind) is UnionType or NoneType in get_args(kind):
        kind = next(each for each in get_args(kind) if each is not NoneType)
    if get_origin(kind) in (tuple, Sequence):
        yield from optional(get_args(kind)[0], place)
    elif kind is Outcome:
        for key, (part, attribute) in OUTCOME_FIELDS.items():
            (field,) = [each for each in fields(_PARTS[part]) if each.name == attribute]
            if (default := default_of(field)) is not MISSING:
                yield (*place, key), default
    elif kind is TrialSpec:
        yield from (((*place, key), value) for key, value in ADDED_KEYS.items())
    elif is_dataclass(kind):
        hints = get_type_hints(kind)
        for field in fields(kind):
            if (default := default_of(field)) is not MISSING:
                yield (*place, field.name), default
            yield from optional(hints[field.name], (*place, field.name))


def every(value: Any, place: Place) -> Iterator[dict[str, Any]]:
    """Yield each object of a record that has the last name of `place`."""
    if isinstance(value, list):
        for each in value:
            yield from every(each, place)
    elif len(place) == 1:
        yield value
    else:
        yield from every(value[place[0]], place[1:])


CASES = [(name, place, default) for name, kind in KINDS.items() for place, default in optional(kind)]


def content(form: RecordFormat, record: Any) -> bytes:
    return with_checksum({form.version_key: form.version, "record": record})


def test_there_are_optional_fields_in_every_store():
    assert {name for name, _, _ in CASES} == set(STORES)
    assert len(CASES) > 100


@pytest.mark.parametrize(("name", "place", "default"), CASES, ids=[f"{n}-{'.'.join(p)}" for n, p, _ in CASES])
def test_a_record_from_before_a_field_is_read_with_its_default(name, place, default):
    kept, record = STORES[name], stored(name)
    for holder in every(record, place):
        del holder[place[-1]]
    file = content(kept.form, record)
    if place[0] != "spec" or name != "trial":
        nested = place[0] == "outcome" and len(place) > 2
        if not nested:
            with pytest.raises(ValueError, match="missing"):
                kept.form.parse(file)
    found = replace(kept.form, since=kept.form.since + 1).parse(file)
    again = json.loads(json.dumps(kept.form.as_json(found)))
    expected = copy.deepcopy(record)
    for holder in every(expected, place):
        holder[place[-1]] = default
    assert again == json.loads(json.dumps(expected))


@pytest.mark.parametrize("name", STORES)
def test_a_record_is_read_back(name, tmp_path):
    store, record = STORES[name].store(tmp_path), full(name)
    store.write(record)
    assert store.path("0" * 16).read_bytes() == STORES[name].form.content(record)
    assert store.find("0" * 16) == record
    assert store.read_all() == tuple(store.read_each()) == (record,)
    store.remove("0" * 16)
    assert store.find("0" * 16) is None
    assert store.read_all() == ()


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("damage", ["torn", "changed", "of another run"])
def test_a_damaged_record_is_left_out_and_named(name, damage, tmp_path):
    said = []
    store = STORES[name].store(tmp_path, notify=said.append)
    store.write(full(name))
    path = store.path("0" * 16)
    content = path.read_bytes()
    if damage == "of another run":
        path = path.rename(store.path("1" * 16))
    else:
        path.write_bytes(content[:-9] if damage == "torn" else content.replace(b"text", b"test", 1))
    assert store.read_all() == ()
    (sentence,) = said
    assert path.name in sentence
    assert ("it is the record of" in sentence) == (damage == "of another run")


@pytest.mark.parametrize("name", STORES)
def test_a_number_that_no_table_can_hold_is_no_record_but_of_a_trial(name, tmp_path):
    store, record = STORES[name].store(tmp_path), full(name)
    store.write(replace(record, outcome=builders.changed(record.outcome, parameters=2**70)))
    assert (store.find("0" * 16) is not None) == (name == "trial")


@pytest.mark.parametrize("name", STORES)
def test_a_record_that_cannot_be_opened_is_no_missing_record(name, tmp_path):
    said = []
    store = STORES[name].store(tmp_path, notify=said.append)
    store.path("0" * 16).mkdir(parents=True)
    try:
        assert store.find("0" * 16) is None
    except StorageError as error:
        said.append(str(error))
    assert str(store.path("0" * 16)) in said[0]


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("more", [{}, {"signature": "x"}])
def test_a_record_of_a_newer_version_is_refused_by_name_and_left(name, more, tmp_path):
    kept = STORES[name]
    store = kept.store(tmp_path)
    version = kept.form.version + 1
    file = with_checksum({kept.form.version_key: version, "record": {"what": "nobody knows"}, **more})
    path = store.path("0" * 16)
    path.parent.mkdir(parents=True)
    path.write_bytes(file)
    for read in (lambda: store.find("0" * 16), store.read_all):
        with pytest.raises(UsageError) as refused:
            read()
        assert "newer version of this program" in str(refused.value)
        assert str(path) in str(refused.value)
        assert f"record schema {version}" in str(refused.value)
    assert path.read_bytes() == file


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("version", [0, -1, True, "1", None, 1.0, [1]])
def test_a_version_that_never_was_is_no_record(name, version):
    form = STORES[name].form
    with pytest.raises(ValueError, match=f"is not {form.version}|not a record"):
        form.parse(with_checksum({form.version_key: version, "record": stored(name)}))


def names(value: Any, kind: Any) -> Any:
    """The names of all fields of a stored value."""
    if isinstance(value, list):
        return names(value[0], kind) if value else None
    if isinstance(value, dict):
        return {key: names(each, kind) for key, each in value.items()}
    return None


def holds(later: Any, before: Any) -> bool:
    """Whether names are those of before, and perhaps more."""
    return before is None or all(key in later and holds(later[key], each) for key, each in before.items())


@pytest.mark.parametrize("name", STORES)
def test_a_field_that_is_added_raises_the_version_and_none_is_renamed(name):
    """Without a higher version, an earlier record, which lacks the field, looks like a damaged one."""
    shapes = json.loads(SHAPES.read_text())
    record = stored(name)
    if name == "trial":
        del record["spec"]  # each key of a trial says itself since when it is there
    found, form = names(record, None), STORES[name].form
    before = shapes[name][str(form.since)]
    assert holds(found, before)
    assert (form.version == form.since) == (found == before)


@dataclass(frozen=True, kw_only=True)
class Added(MonitoredRun):
    """A monitored run with a field more."""

    added: int | None = None


def test_a_field_more_is_a_version_more_and_earlier_records_are_read():
    later = replace(MONITORED, kind=Added)
    assert later.version == MONITORED.version + 1
    before = later.parse(MONITORED.content(full("monitored")))
    assert before.added is None
    after = replace(before, added=3)
    assert later.parse(later.content(after)) == after
    with pytest.raises(NewerSchemaError):
        MONITORED.parse(later.content(after))
