"""Folders of models for libraries that look for files of the hub, as vLLM does. The processes of one job share them.

Such a folder has a configuration. It has no tokenizer, which the process that needs one makes, and no weights: those of
vLLM are random with `load_format=dummy`.
"""

import json
import os
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from profiler.seams.patching import Patch
from profiler.storage.foreign.hub import hub_problem
from profiler.substitutes.checkpoints.known_configs import builtin_config, known_config
from profiler.substitutes.options import Replaced

_CONFIG = "config.json"
_ALL = ["*"]


def cached_file_patches(file_download: ModuleType, parent: Path, replaced: Replaced) -> list[Patch]:
    """Return the patch of the function of the hub's client that finds one file in its cache."""
    find = file_download.try_to_load_from_cache

    def found(repo_id: str, filename: str, *args: Any, **kwargs: Any) -> Any:
        answer = find(repo_id, filename, *args, **kwargs)
        if isinstance(answer, str) or filename != _CONFIG or kwargs.get("repo_type") not in (None, "model"):
            return answer
        folder = made_folder(repo_id, parent, replaced)
        return answer if folder is None else str(folder / _CONFIG)

    return [(file_download, "try_to_load_from_cache", found)]


def snapshot_patches(snapshots: ModuleType, parent: Path, replaced: Replaced) -> list[Patch]:
    """Return the patch of the function of a hub's client, also ModelScope's, that finds the whole folder of a model."""
    find = snapshots.snapshot_download

    def found(*args: Any, **kwargs: Any) -> Any:
        try:
            return find(*args, **kwargs)
        except OSError:
            folder = None
            if kwargs.get("repo_type") in (None, "model"):
                name = str(args[0] if args else kwargs.get("repo_id") or kwargs.get("model_id"))
                folder = made_folder(name, parent, replaced)
            elif kwargs.get("ignore_patterns") == _ALL:
                # axolotl asks whether a data set exists; one that is not here is made when it is loaded.
                parent.mkdir(parents=True, exist_ok=True)
                folder = parent
            if folder is None:
                raise
            return str(folder)

    return [(snapshots, "snapshot_download", found)]


def made_folder(name: str, parent: Path, replaced: Replaced) -> Path | None:
    """Return the folder of a model that is known here, made by the first process that asks.

    Args:
        name: Of the model on the hub.
        parent: Folder of such folders.
        replaced: Gets its name.

    Returns:
        None if the model's configuration is not known, or if the hub answers, which has all of its files.
    """
    config = None if hub_problem() == "" else builtin_config(name) or known_config(name)
    if config is None:
        return None
    file = parent / name.replace("/", "--") / _CONFIG
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, aside = tempfile.mkstemp(dir=parent)
        with os.fdopen(descriptor, "w") as written:
            json.dump(config, written, indent=1)
        Path(aside).replace(file)  # whole, whichever process is first
    replaced.add("files of", name, "its configuration")
    return file.parent
