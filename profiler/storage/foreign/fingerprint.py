"""Hashes of the files that a trial refers to. They are part of the trial's id: an edited file is a new trial."""

import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from profiler.config.trials.identity import config_hash
from profiler.domain.errors import Fault, UsageError
from profiler.domain.models.builtin_models import find_builtin
from profiler.storage.files.foreign_files import Kind, kind_of, open_regular
from profiler.storage.foreign.model_config import is_local, load_model_config

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def content_of(
    model: str, dataset: str | None, *, model_config: Callable[[str], Mapping[str, object]] = load_model_config
) -> dict[str, str]:
    """Return hashes of a model's `config.json` and of local data; empty for a built-in model and synthetic prompts.

    Args:
        model: A built-in name, a local path or a hub id.
        dataset: A local path or a hub id; None for synthetic prompts.
        model_config: Loads the `config.json` of a model that is not built in.

    Raises:
        UsageError: One of them cannot be read.
    """
    found = {}
    if find_builtin(model) is None:
        found["model"] = config_hash(model_config(model))
    data = data_hash(dataset) if dataset is not None else None
    if data is not None:
        found["dataset"] = data
    return found


def is_only_a_hub_model(model: str, dataset: str | None) -> bool:
    """Return whether the only file that a trial refers to is the `config.json` of a hub id, never edited here."""
    return find_builtin(model) is None and not is_local(model) and (dataset is None or not is_local(dataset))


def data_hash(source: str) -> str | None:
    """Return the hash of a local data set: a file, or all files in a folder; None for a hub id.

    Raises:
        UsageError: The data are here and cannot be read.
    """
    path = Path(source)
    try:
        match kind_of(path):
            case Kind.FILE:
                return _hash([(path.suffix, path)])
            case Kind.FOLDER:
                return _hash([(str(each.relative_to(path)), each) for each in _files(path)])
            case Kind.MISSING if _HUB_ID.fullmatch(source):
                return None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError([Fault(key="dataset", found=source, problem=f"cannot be read ({why})")]) from error
    problem = "must be a local file or folder, or a hub id such as openai/gsm8k"
    raise UsageError([Fault(key="dataset", found=source, problem=problem)])


def _files(folder: Path) -> list[Path]:
    """Return the files of a folder, hidden ones excluded."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts))


def _hash(files: list[tuple[str, Path]]) -> str:
    whole = hashlib.sha256()
    for name, path in files:
        with open_regular(path) as file:
            whole.update(f"{name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()[:16]
