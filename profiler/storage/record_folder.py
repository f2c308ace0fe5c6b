"""Records of runs that have no trial: one JSON file per run, written atomically and protected by a checksum."""

from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from profiler.domain.errors import Fault, ProfilerError, UsageError
from profiler.domain.outcome import Outcome
from profiler.storage.atomic import StorageError, remove_partial, write_atomically
from profiler.storage.checksummed import checksum_of, parse_checksummed, with_checksum
from profiler.storage.foreign_files import read_bytes, reason
from profiler.storage.outcome_fields import flat_values, outcome_from_flat
from profiler.storage.typed_json import JSON, JsonMismatchError, Reader, from_json, to_json

_RECORDS = "records"
_MOST_BYTES = 1 << 28

_READERS: dict[type, Reader] = {Outcome: partial(outcome_from_flat, defaults=False)}


class Record(Protocol):
    """A dataclass with these fields."""

    @property
    def run_id(self) -> str:
        """Name of the run and of its file."""

    @property
    def outcome(self) -> Outcome:
        """The result of the run."""


Kind = TypeVar("Kind", bound=Record)


@dataclass(frozen=True, kw_only=True)
class RecordFormat(Generic[Kind]):
    """How records of one kind are stored."""

    kind: type[Kind]
    version_key: str
    version: int
    """Raise it with every field that is added, and if stored records would be read with another meaning."""
    oldest: int
    """Fields that a record of an earlier version lacks have the value that its run had."""
    what: str
    """What a record is of, in a sentence: ``"a script"``."""


class RecordFolder(Generic[Kind]):
    """Records of one kind, in `<folder>/records/`."""

    def __init__(self, folder: Path, form: RecordFormat[Kind]) -> None:
        self._folder = folder
        self._form = form

    def path(self, run_id: str) -> Path:
        """Return the path of the record of a run, whether it exists or not."""
        return self._folder / _RECORDS / f"{run_id}.json"

    def write(self, record: Kind) -> None:
        """Store a record, replacing an earlier one of the same run.

        Raises:
            StorageError: Writing failed; nothing partial is left.
        """
        content: dict[str, JSON] = {self._form.version_key: self._form.version, "record": _as_json(record)}
        write_atomically(self.path(record.run_id), with_checksum(content))

    def remove(self, run_id: str) -> None:
        """Remove the record of a run, and what a killed writer left of it.

        Raises:
            StorageError: It cannot be removed.
        """
        remove_partial(self._folder, run_id)
        path = self.path(run_id)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"{path}: could not be removed ({reason(error)}).") from error

    def find(self, run_id: str) -> Kind | None:
        """Return the record of a run; None if there is none, or if it is damaged.

        Raises:
            UsageError: A later version of this program wrote it.
        """
        found, _ = self._read(self.path(run_id))
        return found

    def read_all(self) -> tuple[tuple[Kind, ...], tuple[str, ...]]:
        """Return every valid record, by run id, and a sentence for each file that is not one.

        Raises:
            UsageError: A later version of this program wrote one of them.
        """
        read = [self._read(path) for path in sorted((self._folder / _RECORDS).glob("*.json"))]
        return tuple(record for record, _ in read if record), tuple(problem for _, problem in read if problem)

    def _read(self, path: Path) -> tuple[Kind | None, str]:
        try:
            record = self._parse(read_bytes(path, most_bytes=_MOST_BYTES))
            if record.run_id == path.stem:
                return record, ""
            problem = f"it is the record of {record.run_id}"
        except FileNotFoundError:
            return None, ""
        except OSError as error:
            problem = reason(error)
        except _NewerSchemaError as error:
            raise UsageError([self._newer_fault(path, error.version)]) from error
        except (ValueError, RecursionError, ProfilerError) as error:
            problem = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        return None, f"{path} is no record of {self._form.what} ({problem}), and is left out."

    def _newer_fault(self, path: Path, version: int) -> Fault:
        return Fault(
            key="record",
            found=str(path),
            problem=(
                f"was written by a newer version of this program (schema {version}; this one reads up to "
                f"{self._form.version})"
            ),
            hint="Update this program, or choose another results_dir; nothing was changed.",
        )

    def _parse(self, content: bytes) -> Kind:
        stored, own = parse_checksummed(content, most_bytes=_MOST_BYTES)
        key, known = self._form.version_key, self._form.version
        if not isinstance(stored, dict) or set(stored) != {"checksum", key, "record"}:
            raise JsonMismatchError("not a record file")
        checksum, version = stored.pop("checksum"), stored[key]
        if not own and checksum != checksum_of(stored):
            raise JsonMismatchError("the checksum does not match")
        if isinstance(version, int) and version > known:
            raise _NewerSchemaError(version)
        if version not in range(self._form.oldest, known + 1):
            raise JsonMismatchError(f"{key} {version} is not {known}")
        return from_json(self._form.kind, stored["record"], readers=_READERS, defaults=version != known)


class _NewerSchemaError(ValueError):
    def __init__(self, version: int) -> None:
        super().__init__(f"record schema {version}")
        self.version = version


def _as_json(record: Any) -> dict[str, JSON]:  # noqa: ANN401  a dataclass of any kind
    names = [each.name for each in fields(record) if each.name != "outcome"]
    flat = {key: to_json(value) for key, value in flat_values(record.outcome).items()}
    return {**{name: to_json(getattr(record, name)) for name in names}, "outcome": flat}
