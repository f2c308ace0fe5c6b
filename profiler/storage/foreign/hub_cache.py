"""The local cache of the Hugging Face hub, in the layout of its client, and the client's environment variables.

Source: `constants.py` and `file_download.py` of huggingface_hub 1.x.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from profiler.storage.files.atomic import StorageError, write_atomically

HUB_ID = re.compile(r"(?!.*(--|\.\.))\w[\w.-]*(/\w[\w.-]*)?")
"""A model as the hub names it, with its owner or without."""

_TRUE = {"1", "ON", "YES", "TRUE"}
_DEFAULT_ENDPOINT = "https://huggingface.co"
_REVISION = "main"
_SAFE = re.compile(r"(?!\.+$)[\w.-]+")
"""What becomes the name of a file or folder."""


@dataclass(frozen=True, kw_only=True)
class HubSettings:
    """What the environment says about the hub."""

    endpoint: str
    """Its address, without a slash at the end."""
    is_offline: bool
    folder: Path
    """The cache."""
    token: str
    """Who asks; empty if nobody is named."""


def hub_settings(environment: Mapping[str, str] | None = None) -> HubSettings:
    """Return the settings of the environment; by default of this process."""
    found = os.environ if environment is None else environment
    home = _folder(found.get("HF_HOME") or Path(found.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    return HubSettings(
        endpoint=found.get("HF_ENDPOINT", _DEFAULT_ENDPOINT).rstrip("/"),
        is_offline=any(found.get(name, "").upper() in _TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")),
        folder=_folder(found.get("HF_HUB_CACHE") or found.get("HUGGINGFACE_HUB_CACHE") or home / "hub"),
        token="" if found.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").upper() in _TRUE else _token(found, home),
    )


def _folder(name: str | Path) -> Path:
    return Path(os.path.expandvars(Path(name).expanduser()))


def _token(environment: Mapping[str, str], home: Path) -> str:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if given := "".join(environment.get(name, "").split()):
            return given
    try:
        return "".join(_folder(environment.get("HF_TOKEN_PATH") or home / "token").read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return ""


def cached_file(hub_id: str, name: str) -> Path | None:
    """Return the local path of a file of the hub that the cache has; nothing is asked of the network."""
    return find_in_cache(hub_settings().folder, hub_id, name) if HUB_ID.fullmatch(hub_id) else None


def find_in_cache(folder: Path, hub_id: str, name: str) -> Path | None:
    """Return the path of a file of the newest revision in the cache; None if it is not there."""
    model = _model_folder(folder, hub_id)
    try:
        commit = (model / "refs" / _REVISION).read_text(encoding="ascii").strip()
        path = model / "snapshots" / commit / name
        return path if _SAFE.fullmatch(commit) and path.is_file() else None
    except (OSError, ValueError):
        return None


def keep_in_cache(folder: Path, hub_id: str, name: str, *, commit: str, tag: str, content: bytes) -> Path:
    """Put a file into the cache as the client does, and return its path.

    Args:
        folder: The cache.
        hub_id: The model.
        name: The file.
        commit: The revision that the hub has answered with.
        tag: Name of the content by the hub (`ETag`).
        content: The file.

    Raises:
        ValueError: The commit or the tag cannot be the name of a file.
        OSError: The cache cannot be written.
    """
    if not _SAFE.fullmatch(commit) or not _SAFE.fullmatch(tag):
        raise ValueError("the hub names the file in a way that is not known")
    model = _model_folder(folder, hub_id)
    path = model / "snapshots" / commit / name
    try:
        write_atomically(model / "blobs" / tag, content)
        path.parent.mkdir(parents=True, exist_ok=True)
        _link(path, Path("..", "..", "blobs", tag), content)
        write_atomically(model / "refs" / _REVISION, commit.encode())
    except StorageError as error:
        raise OSError(str(error)) from error
    return path


def _link(path: Path, target: Path, content: bytes) -> None:
    """Link a revision's file to its content, or copy it where links are not allowed."""
    if path.is_file():
        return
    try:
        path.symlink_to(target)
    except OSError:
        write_atomically(path, content)


def _model_folder(folder: Path, hub_id: str) -> Path:
    return folder / f"models--{hub_id.replace('/', '--')}"
