"""Records: one JSON file a trial, written whole or not at all, believed only when its checksum says so."""

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import cast

from profiler.config.identity import spec_from_mapping, spec_to_mapping
from profiler.domain.errors import ProfilerError
from profiler.domain.outcome import TrialRecord
from profiler.domain.trial import TrialSpec
from profiler.storage.atomic import StorageError, remove_partial, write_atomically
from profiler.storage.typed_json import JSON, JsonMismatchError, from_json, to_json

RECORD_SCHEMA_VERSION = 5
"""Raised with every field that is added, and when a stored record would no longer be read as it was meant.

3 added what is measured on a real GPU, 4 what a full card cannot get back, 5 the context in each step's phases. Earlier
records have none of it and are read as such."""

_READ_WITH_DEFAULTS = (2, 3, 4)
"""Earlier versions whose records lack only fields that have a default."""


class RecordStore:
    """The records of one grid, in `<folder>/records/`."""

    def __init__(self, folder: Path) -> None:
        self._records = folder / "records"

    def path(self, trial_id: str) -> Path:
        """Where the record of this trial is, or would be."""
        return self._records / f"{trial_id}.json"

    def write(self, record: TrialRecord) -> None:
        """Store a record, replacing an earlier one of the same trial.

        Raises:
            StorageError: The disk did not take it; nothing partial is left.
        """
        content: dict[str, JSON] = {"schema_version": RECORD_SCHEMA_VERSION, "record": _record_to_json(record)}
        stored = {"checksum": _checksum(content), **content}
        write_atomically(self.path(record.trial_id), json.dumps(stored, indent=1, allow_nan=False).encode())

    def remove_partial(self, trial_id: str) -> None:
        """Remove what killed writers left of this trial's files: record, samples, snapshot. Needs the trial's lock."""
        remove_partial(self._records.parent, trial_id)

    def find(self, trial_id: str) -> TrialRecord | None:
        """The stored record of a trial, or None.

        A record that is torn, edited or of another schema is set aside and counts as absent.

        Raises:
            StorageError: The file is there and cannot be opened.
        """
        return self._read(self.path(trial_id))

    def read_all(self) -> tuple[TrialRecord, ...]:
        """Every sound record, by trial id; the others are set aside.

        Raises:
            StorageError: A file is there and cannot be opened.
        """
        found = (self._read(path) for path in sorted(self._records.glob("*.json")))
        return tuple(record for record in found if record is not None)

    def _read(self, path: Path) -> TrialRecord | None:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"{path}: could not be read ({error.strerror or error}).") from error
        try:
            record = _parse(content)
        except (ValueError, ProfilerError):
            self._set_aside(path)
            return None
        if record.trial_id != path.stem:
            self._set_aside(path)
            return None
        return record

    def _set_aside(self, path: Path) -> None:
        # Kept, because somebody may want to know what happened to it.
        folder = self._records / "set_aside"
        folder.mkdir(exist_ok=True)
        number = sum(1 for _ in folder.glob(f"{path.stem}.*"))
        with suppress(FileNotFoundError):
            path.replace(folder / f"{path.stem}.{number}.json")


def _record_to_json(record: TrialRecord) -> dict[str, JSON]:
    # The spec goes its own way: `config` owns how it is written, because the trial's identity is made of that.
    return {
        "trial_id": record.trial_id,
        "grid": record.grid,
        "label": record.label,
        "spec": cast("JSON", spec_to_mapping(record.spec)),
        "versions": to_json(record.versions),
        "outcome": to_json(record.outcome),
    }


def _parse(content: bytes) -> TrialRecord:
    stored: JSON = json.loads(content)
    if not isinstance(stored, dict) or set(stored) != {"checksum", "schema_version", "record"}:
        raise JsonMismatchError("not a record file")
    checksum = stored.pop("checksum")
    if checksum != _checksum(stored):
        raise JsonMismatchError("the checksum does not hold")
    version = stored["schema_version"]
    if version not in (RECORD_SCHEMA_VERSION, *_READ_WITH_DEFAULTS):
        raise JsonMismatchError(f"schema_version {version} is not {RECORD_SCHEMA_VERSION}")
    older = version != RECORD_SCHEMA_VERSION
    return from_json(TrialRecord, stored["record"], readers={TrialSpec: spec_from_mapping}, defaults=older)


def _checksum(content: dict[str, JSON]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()
