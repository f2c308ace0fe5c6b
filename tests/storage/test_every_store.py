"""One contract for all stores of records: older versions are read with defaults, newer ones are refused by name."""

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from itertools import count
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import builders
import pytest
from test_every_field import filled, lawful

from profiler.config.trials.identity import ADDED_KEYS
from profiler.domain.errors import UsageError
from profiler.domain.monitored import MonitoredRun
from profiler.domain.outcome import Outcome, TrialRecord
from profiler.domain.script import ScriptRecord
from profiler.domain.trial import TrialSpec
from profiler.storage import monitored_records, record_folder, records, script_records
from profiler.storage.checksummed import with_checksum
from profiler.storage.outcome_fields import _PARTS, OUTCOME_FIELDS
from profiler.storage.records import RecordStore
from profiler.storage.typed_json import to_json
from profiler.storage.versioned import RecordFormat

SHAPES = Path(__file__).with_name("record_shapes.json")
"""The names of all stored fields, by kind and version."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """One kind of record, and its store."""

    form: RecordFormat
    store: Callable[[Path], Any]
    as_json: Callable[[Any], Any]


STORES = {
    "trial": Kept(form=records.FORMAT, store=RecordStore, as_json=records._record_to_json),
    "script": Kept(form=script_records.FORMAT, store=script_records.ScriptStore, as_json=record_folder._as_json),
    "monitored": Kept(
        form=monitored_records.FORMAT, store=monitored_records.MonitoredStore, as_json=record_folder._as_json
    ),
}

KINDS = {"trial": TrialRecord, "script": ScriptRecord, "monitored": MonitoredRun}


def full(name: str) -> Any:
    """A record in which no value is a default."""
    found = filled(KINDS[name], count(1000))
    if name == "trial":
        changed = builders.changed(found.outcome, peak_allocated_bytes=1_000_000)
        return replace(lawful(replace(found, outcome=changed)), trial_id="0" * 16)
    return replace(found, run_id="0" * 16)


def stored(name: str) -> dict[str, Any]:
    return json.loads(json.dumps(STORES[name].as_json(full(name))))


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
    found = replace(kept.form, version=kept.form.version + 1).parse(file)
    again = json.loads(json.dumps(kept.as_json(found)))
    expected = copy.deepcopy(record)
    for holder in every(expected, place):
        holder[place[-1]] = default
    assert again == json.loads(json.dumps(expected))


@pytest.mark.parametrize("name", STORES)
def test_a_record_is_read_back(name, tmp_path):
    store, record = STORES[name].store(tmp_path), full(name)
    store.write(record)
    assert store.find("0" * 16) == record


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


@pytest.mark.parametrize("name", STORES)
def test_a_new_field_raises_the_version(name):
    """Without it, a record from before the field cannot be told from a damaged one.

    If this fails, raise the version of the store and add its shape to record_shapes.json.
    """
    shapes = json.loads(SHAPES.read_text())
    record = stored(name)
    if name == "trial":
        del record["spec"]  # each key of a trial says itself since when it is there
    version = str(STORES[name].form.version)
    assert version in shapes[name]
    assert names(record, None) == shapes[name][version]
