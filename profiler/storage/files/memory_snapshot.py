"""Memory snapshots as files: pickled plain values, as `torch.cuda.memory._dump_snapshot` writes them."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profiler.storage.files.atomic import write_atomically


def write_memory_snapshot(path: Path, snapshot: Mapping[str, Any]) -> None:
    """Write a snapshot to `path`, whole or not at all.

    Raises:
        StorageError: The file could not be written.
    """
    write_atomically(path, pickle.dumps(dict(snapshot), protocol=4))


def snapshot_path(folder: Path, trial_id: str) -> Path:
    """Return the path of a trial's snapshot in a grid's folder, whether it exists or not."""
    return folder / "snapshots" / f"{trial_id}.pickle"
