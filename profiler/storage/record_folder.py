"""Records of runs that have no trial: one JSON file per run, written atomically and protected by a checksum."""

from dataclasses import fields
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from profiler.domain.errors import ProfilerError, UsageError
from profiler.domain.outcome import Outcome
from profiler.storage.atomic import StorageError, remove_partial, write_atomically
from profiler.storage.foreign_files import read_bytes, reason
from profiler.storage.outcome_fields import flat_values
from profiler.storage.typed_json import JSON, to_json
from profiler.storage.versioned import NewerSchemaError, RecordFormat

_RECORDS = "records"

MOST_BYTES = 1 << 28
"""Largest record of a script or a monitored run."""


class Record(Protocol):
    """A dataclass with these fields."""

    @property
    def run_id(self) -> str:
        """Name of the run and of its file."""

    @property
    def outcome(self) -> Outcome:
        """The result of the run."""


Kind = TypeVar("Kind", bound=Record)


class RecordFolder(Generic[Kind]):
    """Records of one kind, in `<folder>/records/`."""

    def __init__(self, folder: Path, form: RecordFormat[Kind], *, what: str) -> None:
        """`what` a record is of, in a sentence: ``"a script"``."""
        self._folder = folder
        self._form = form
        self._what = what

    def path(self, run_id: str) -> Path:
        """Return the path of the record of a run, whether it exists or not."""
        return self._folder / _RECORDS / f"{run_id}.json"

    def write(self, record: Kind) -> None:
        """Store a record, replacing an earlier one of the same run.

        Raises:
            StorageError: Writing failed; nothing partial is left.
        """
        write_atomically(self.path(record.run_id), self._form.content(_as_json(record)))

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
            record = self._form.parse(read_bytes(path, most_bytes=self._form.most_bytes))
            _check_storable(_as_json(record))
            if record.run_id == path.stem:
                return record, ""
            problem = f"it is the record of {record.run_id}"
        except FileNotFoundError:
            return None, ""
        except OSError as error:
            problem = reason(error)
        except NewerSchemaError as error:
            raise UsageError([self._form.newer_fault(path, error.version)]) from error
        except (ValueError, RecursionError, ProfilerError) as error:
            problem = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        return None, f"{path} is no record of {self._what} ({problem}), and is left out."


def _check_storable(value: JSON) -> None:
    """Check that a table can hold all values.

    Raises:
        ValueError: A number has more than 64 bits, or a text is not one in UTF-8.
    """
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            _check_storable(each)
    elif isinstance(value, str):
        value.encode()
    elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ValueError("a number has more than 64 bits")


def _as_json(record: Any) -> dict[str, JSON]:  # noqa: ANN401  a dataclass of any kind
    names = [each.name for each in fields(record) if each.name != "outcome"]
    flat = {key: to_json(value) for key, value in flat_values(record.outcome).items()}
    return {**{name: to_json(getattr(record, name)) for name in names}, "outcome": flat}
