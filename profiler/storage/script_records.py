"""Records of scripts: one JSON file per run, written atomically and protected by a checksum."""

from dataclasses import fields
from functools import partial
from pathlib import Path

from profiler.domain.errors import Fault, ProfilerError, UsageError
from profiler.domain.outcome import Outcome
from profiler.domain.script import ScriptRecord
from profiler.storage.atomic import StorageError, remove_partial, write_atomically
from profiler.storage.checksummed import checksum_of, parse_checksummed, with_checksum
from profiler.storage.foreign_files import read_bytes, reason
from profiler.storage.outcome_fields import flat_values, outcome_from_flat
from profiler.storage.typed_json import JSON, JsonMismatchError, Reader, from_json, to_json

SCRIPT_SCHEMA_VERSION = 2
"""Raise it with every field that is added, and if stored records would be read with another meaning."""

_OLDEST_VERSION = 1
_VERSION = "script_schema_version"
_RECORDS = "records"
_MOST_BYTES = 1 << 28

_READERS: dict[type, Reader] = {Outcome: partial(outcome_from_flat, defaults=False)}


class ScriptStore:
    """Records of the runs of one script, in `<folder>/records/`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, run_id: str) -> Path:
        """Return the path of the record of a run, whether it exists or not."""
        return self._folder / _RECORDS / f"{run_id}.json"

    def write(self, record: ScriptRecord) -> None:
        """Store a record, replacing an earlier one of the same run.

        Raises:
            StorageError: Writing failed; nothing partial is left.
        """
        content: dict[str, JSON] = {_VERSION: SCRIPT_SCHEMA_VERSION, "record": _as_json(record)}
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

    def find(self, run_id: str) -> ScriptRecord | None:
        """Return the record of a run; None if there is none, or if it is damaged.

        Raises:
            UsageError: A later version of this program wrote it.
        """
        found, _ = self._read(self.path(run_id))
        return found

    def read_all(self) -> tuple[tuple[ScriptRecord, ...], tuple[str, ...]]:
        """Return every valid record, by run id, and a sentence for each file that is not one.

        Raises:
            UsageError: A later version of this program wrote one of them.
        """
        read = [self._read(path) for path in sorted((self._folder / _RECORDS).glob("*.json"))]
        return tuple(record for record, _ in read if record), tuple(problem for _, problem in read if problem)

    def _read(self, path: Path) -> tuple[ScriptRecord | None, str]:
        try:
            record = _parse(read_bytes(path, most_bytes=_MOST_BYTES))
            if record.run_id == path.stem:
                return record, ""
            problem = f"it is the record of {record.run_id}"
        except FileNotFoundError:
            return None, ""
        except OSError as error:
            problem = reason(error)
        except _NewerSchemaError as error:
            raise UsageError([_newer_fault(path, error.version)]) from error
        except (ValueError, RecursionError, ProfilerError) as error:
            problem = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        return None, f"{path} is no record of a script ({problem}), and is left out."


class _NewerSchemaError(ValueError):
    def __init__(self, version: int) -> None:
        super().__init__(f"record schema {version}")
        self.version = version


def _newer_fault(path: Path, version: int) -> Fault:
    return Fault(
        key="record",
        found=str(path),
        problem=(
            f"was written by a newer version of this program (schema {version}; this one reads up to "
            f"{SCRIPT_SCHEMA_VERSION})"
        ),
        hint="Update this program, or choose another results_dir; nothing was changed.",
    )


def _as_json(record: ScriptRecord) -> dict[str, JSON]:
    names = [each.name for each in fields(record) if each.name != "outcome"]
    flat = {key: to_json(value) for key, value in flat_values(record.outcome).items()}
    return {**{name: to_json(getattr(record, name)) for name in names}, "outcome": flat}


def _parse(content: bytes) -> ScriptRecord:
    stored, own = parse_checksummed(content, most_bytes=_MOST_BYTES)
    if not isinstance(stored, dict) or set(stored) != {"checksum", _VERSION, "record"}:
        raise JsonMismatchError("not a record file")
    checksum, version = stored.pop("checksum"), stored[_VERSION]
    if not own and checksum != checksum_of(stored):
        raise JsonMismatchError("the checksum does not match")
    if isinstance(version, int) and version > SCRIPT_SCHEMA_VERSION:
        raise _NewerSchemaError(version)
    if version not in range(_OLDEST_VERSION, SCRIPT_SCHEMA_VERSION + 1):
        raise JsonMismatchError(f"{_VERSION} {version} is not {SCRIPT_SCHEMA_VERSION}")
    # Fields that a record of an earlier version lacks have the value that its run had.
    return from_json(ScriptRecord, stored["record"], readers=_READERS, defaults=version != SCRIPT_SCHEMA_VERSION)
