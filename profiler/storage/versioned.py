"""The one form of all stored records: JSON with a checksum and the version of its schema.

A record of an earlier version lacks only fields with a default, also within its outcome. One of a later version is
refused by name and not touched.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import Any, Generic, TypeVar

from profiler.domain.errors import Fault
from profiler.domain.outcome import Outcome
from profiler.storage.checksummed import checksum_of, parse_checksummed, with_checksum
from profiler.storage.outcome_fields import outcome_from_flat
from profiler.storage.typed_json import JSON, JsonMismatchError, ListReader, Reader, from_json

Kind = TypeVar("Kind")

_OUTCOMES: Mapping[bool, Reader] = {older: partial(outcome_from_flat, defaults=older) for older in (False, True)}
"""Readers of an outcome in a record of this version, and in an earlier one."""


@dataclass(frozen=True, kw_only=True)
class RecordFormat(Generic[Kind]):
    """How records of one kind are stored."""

    kind: type[Kind]
    version_key: str
    version: int
    """Raise it with every field that is added, and if stored records would be read with another meaning."""
    oldest: int
    """Fields that a record of an earlier version lacks have the value that its run had."""
    most_bytes: int
    """Largest record; larger files are no records."""
    readers: tuple[tuple[type, Reader], ...] = ()
    """Own readers of further classes than `Outcome`."""

    def content(self, record: dict[str, JSON]) -> bytes:
        """Return the file of a record."""
        return with_checksum({self.version_key: self.version, "record": record})

    def parse(self, content: bytes) -> Kind:
        """Return the record that a file holds.

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


class NewerSchemaError(ValueError):
    """A record was written by a later version of this program."""

    def __init__(self, version: Any) -> None:  # noqa: ANN401  of JSON
        super().__init__(f"record schema {version}")
        self.version: int = version
