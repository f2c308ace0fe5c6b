"""The one form of all stored records: JSON with a checksum, its version, and those of the packages.

A record of an earlier version lacks only fields with a default, also within its outcome. One of a later version is
refused by name and not touched.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import PurePath
from typing import Any, Generic, TypeVar, get_args, get_type_hints

from profiler import __version__
from profiler.domain.errors import Fault, ProfilerError, UsageError, printable
from profiler.domain.machines.extras import installed
from profiler.domain.runs.columns import columns_of, keys_of_outcome, parts_of
from profiler.domain.runs.outcome import PACKAGES, Outcome, Run, Versions
from profiler.domain.trials.trial import TrialSpec
from profiler.storage.files.typed_json import (
    JSON,
    JsonMismatchError,
    ListReader,
    Reader,
    checksum_of,
    from_json,
    parse_checksummed,
    to_json,
    with_checksum,
)
from profiler.storage.records.outcome_fields import flat_values, outcome_from_flat


def installed_versions() -> Versions:
    """Return the installed versions; None for a package that is not installed."""
    return Versions(**{name: _version(name) for name in PACKAGES}, profiler=__version__)


def project_page() -> str:
    """Return the address of the project's page; empty if the installed distribution declares none."""
    here = installed()
    declared = [] if here is None else here.metadata.get_all("Project-URL") or []
    page = dict(entry.partition(", ")[::2] for entry in declared).get("Homepage", "")
    return page if page.startswith("https://") else ""


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


Kind = TypeVar("Kind", bound=Run)

_OUTCOMES: Mapping[bool, Reader] = {older: partial(outcome_from_flat, defaults=older) for older in (False, True)}
"""Readers of an outcome in a record of this version, and in an earlier one."""


class NewerSchemaError(ValueError):
    """A record was written by a later version of this program."""

    def __init__(self, version: Any) -> None:  # noqa: ANN401  of JSON
        super().__init__(f"record schema {version}")
        self.version: int = version


class NewerRecordError(UsageError):
    """A record was written by a later version of this program; it must not be changed."""


class DamagedRecordError(ValueError):
    """A file or an object is not the record of the run after which it is named; the text says why."""


@dataclass(frozen=True, kw_only=True)
class RecordFormat(Generic[Kind]):
    """How records of one kind of run are stored."""

    kind: type[Kind]
    what: str
    """What a record is of, in a sentence: ``"a script"``."""
    noun: str = ""
    """Precedes the name of another run in a sentence."""
    version_key: str
    since: int
    """The version since which records are read with today's meaning; raise it if they would be read with another."""
    names: int
    """How many names of fields a record of that version has (`names_in`)."""
    oldest: int
    """Fields that a record of an earlier version lacks have the value that its run had."""
    most_bytes: int
    """Largest record; larger files are no records."""
    fits_tables: bool
    """Whether a record with a value that no table can hold is none. Those of trials are left out of tables by name."""
    readers: tuple[tuple[type, Reader], ...] = ()
    """Own readers of further classes than `Outcome`."""
    writers: tuple[tuple[type, Callable[[Any], JSON]], ...] = ()
    """Own forms of these classes in JSON."""

    @cached_property
    def version(self) -> int:
        """The version of records that are written: each field that was added has raised it by one.

        A program from before the field refuses such a record by name, instead of taking it for a damaged one.
        """
        return self.since + names_in(self.kind) - self.names

    def name_of(self, record: Kind) -> str:
        """Return the name of a run, which is also that of its file: the column that identifies it."""
        (name,) = (each.place[-1] for each in columns_of(self.kind) if each.identifies)
        return str(getattr(record, name))

    def as_json(self, record: Kind) -> dict[str, JSON]:
        """Return a record as JSON, with a flat outcome."""
        own = {Outcome: _flat, **dict(self.writers)}
        values = {each.name: getattr(record, each.name) for each in fields(record)}
        return {name: own.get(type(value), to_json)(value) for name, value in values.items()}

    def content(self, record: Kind) -> bytes:
        """Return the file of a record."""
        return with_checksum({self.version_key: self.version, "record": self.as_json(record)})

    def parse_named(self, content: bytes, path: PurePath) -> Kind:
        """Return the record that `path` has as its content.

        Raises:
            DamagedRecordError: It is not a record, or that of another run.
            NewerRecordError: A later version of this program wrote it.
        """
        try:
            record = self.parse(content)
            if self.fits_tables:
                _check_fits_tables(self.as_json(record))
        except NewerSchemaError as error:
            raise NewerRecordError([self.newer_fault(path, error.version)]) from error
        except (ValueError, RecursionError, ProfilerError) as error:
            raise DamagedRecordError((str(error).splitlines() or [type(error).__name__])[0].rstrip(".")) from error
        if (name := self.name_of(record)) != path.stem:
            raise DamagedRecordError(printable(f"it is the record of {self.noun}{name}"))
        return record

    def parse(self, content: bytes) -> Kind:
        """Return the record that a file holds, whatever its name.

        Raises:
            NewerSchemaError: A later version of this program wrote it.
            ValueError: It is no record.
        """
        stored, own = parse_checksummed(content, most_bytes=self.most_bytes)
        if not isinstance(stored, dict):
            raise JsonMismatchError("not a record file")
        version = stored.get(self.version_key)
        newer = type(version) is int and version > self.version
        if set(stored) != {"checksum", self.version_key, "record"}:
            if newer and "record" in stored:
                raise NewerSchemaError(version)
            raise JsonMismatchError("not a record file")
        checksum = stored.pop("checksum")
        if not own and checksum != checksum_of(stored):
            raise JsonMismatchError("the checksum does not match")
        if newer:
            raise NewerSchemaError(version)
        if type(version) is not int or version < self.oldest:
            raise JsonMismatchError(f"{self.version_key} {version} is not {self.version}")
        return from_json(self.kind, stored["record"], readers=self._readers(version), defaults=version != self.version)

    def newer_fault(self, path: PurePath, version: int, *, others: int = 0) -> Fault:
        """Return the fault of a record of a later version, and of so many others."""
        more = f", and {others} more," if others else ""
        problem = (
            f"it{more} was written by a newer version of this program (record schema {version}; this one reads up to "
            f"{self.version})"
        )
        hint = "Update this program, or choose another results_dir; nothing was changed."
        return Fault(key="record", found=str(path), problem=problem, hint=hint)

    def _readers(self, version: int) -> Mapping[Any, Reader | ListReader]:
        return {**dict(self.readers), Outcome: _OUTCOMES[version != self.version]}


def names_in(hint: Any) -> int:  # noqa: ANN401  a type, or one that may be None or a sequence
    """Return how many names of fields a stored value has. Each key of a trial says itself since when it is there."""
    if parts := get_args(hint):
        return sum(map(names_in, parts))
    if hint is Outcome:
        hints = {name: get_type_hints(part) for name, part in parts_of(Outcome).items()}
        return sum(1 + names_in(hints[part][attribute]) for part, attribute in keys_of_outcome(Outcome).values())
    if is_dataclass(hint) and hint is not TrialSpec:
        return sum(1 + names_in(each) for each in get_type_hints(hint).values())
    return 0


def _flat(outcome: Outcome) -> JSON:
    return {key: to_json(value) for key, value in flat_values(outcome).items()}


def _check_fits_tables(value: JSON) -> None:
    """Check that a table can hold all values.

    Raises:
        ValueError: A number has more than 64 bits, or a text is not one in UTF-8.
    """
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            _check_fits_tables(each)
    elif isinstance(value, str):
        value.encode()
    elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ValueError("a number has more than 64 bits")
