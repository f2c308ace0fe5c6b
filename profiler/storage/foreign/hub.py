"""Files of the Hugging Face hub by the standard library, with an answer within seconds also where there is no network.

The hub is asked once per process whether it answers; if it does not, or `HF_HUB_OFFLINE` is set, the file is taken from
the local cache of the hub's own client, which also keeps what is downloaded here. Its layout and variables are those of
`constants.py` and `file_download.py` of huggingface_hub 1.x.
"""

import os
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from http.client import HTTPException, HTTPMessage, HTTPResponse
from pathlib import Path
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

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


ANSWER_S = 2.0
"""Time in which the hub has to answer at all; name resolution included, which has no time limit of its own."""

_DOWNLOAD_S = 10.0
"""Time limit of the download of one file."""

_MOST_BYTES = 10 * 2**20
"""Largest file that is downloaded; a `config.json` has some kB."""

_CHUNK_BYTES = 2**16
_REASONS = {
    401: "it does not exist, or it is private and HF_TOKEN does not allow it",
    403: "it is gated, and HF_TOKEN does not allow it",
    404: "it does not exist",
}


class HubError(Exception):
    """A file of the hub is unavailable; the message is the reason."""


def hub_file(hub_id: str, name: str) -> Path:
    """Return the local path of a file of the hub, downloaded if the hub answers.

    Raises:
        HubError: It is neither available from the hub nor in the local cache.
    """
    settings = hub_settings()
    if problem := _setting_problem(settings.endpoint):
        raise HubError(problem)
    if not HUB_ID.fullmatch(hub_id):
        raise HubError(f"'{hub_id}' is not of the form name or owner/name")
    problem = hub_problem()
    if not problem:
        try:
            return _downloaded(settings, hub_id, name)
        except HTTPError as error:
            if error.code in _REASONS:
                raise HubError(f"{settings.endpoint} answers {error.code}: {_REASONS[error.code]}") from error
            problem = f"{settings.endpoint} answers {error.code}"
        except (HTTPException, OSError, ValueError) as error:
            problem = _first_line(error)
    cached = find_in_cache(settings.folder, hub_id, name)
    if cached is None:
        raise HubError(f"{problem}, and the local cache has no copy")
    return cached


def hub_problem() -> str:
    """Return why nothing can be asked of the hub; empty if it answers. It is asked once per process."""
    settings = hub_settings()
    problem = _setting_problem(settings.endpoint)
    if problem or settings.is_offline:
        return problem or "HF_HUB_OFFLINE is set"
    return _silence(settings.endpoint)


def _setting_problem(endpoint: str) -> str:
    """Return what is wrong with the address of the hub; empty if nothing is."""
    try:
        parts = urlsplit(endpoint)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return ""
    except ValueError:
        pass
    return f"HF_ENDPOINT={endpoint} must be an address such as https://huggingface.co"


@cache
def _silence(endpoint: str) -> str:
    """Return why the hub does not answer; empty if it does, whatever the answer is."""
    found: list[str] = []
    # A thread, because a name server that is silent cannot be interrupted otherwise.
    asking = threading.Thread(target=lambda: found.append(_answer_problem(endpoint)), daemon=True)
    asking.start()
    asking.join(ANSWER_S)
    return found[0] if found else f"{endpoint} did not answer within {ANSWER_S:g} s"


def _answer_problem(endpoint: str) -> str:
    try:
        _opened(Request(endpoint, method="HEAD"), ANSWER_S).close()
    except HTTPError:
        return ""
    except (HTTPException, OSError, ValueError) as error:
        return f"{endpoint} cannot be reached ({_first_line(error)})"
    return ""


class _Redirects(HTTPRedirectHandler):
    """Redirects of the hub: the token stays with the host that it is for."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        """Return the request that follows `req`."""
        if urlsplit(newurl).scheme not in ("http", "https"):
            raise URLError(f"redirected to {newurl}")
        found = super().redirect_request(req, fp, code, msg, headers, newurl)
        if found is not None and urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            found.remove_header("Authorization")
        return found


def _opened(request: Request, timeout_s: float) -> HTTPResponse:
    answer: HTTPResponse = build_opener(_Redirects).open(request, timeout=timeout_s)
    return answer


def _downloaded(settings: HubSettings, hub_id: str, name: str) -> Path:
    """Return the local path of a file after downloading it.

    Raises:
        OSError: It cannot be read, also `HTTPError`, or the cache cannot be written.
        ValueError: It is too large or too slow, or the hub does not name its revision.
    """
    request = Request(f"{settings.endpoint}/{hub_id}/resolve/main/{quote(name)}")
    if settings.token:
        request.add_header("Authorization", f"Bearer {settings.token}")
    with _opened(request, _DOWNLOAD_S) as answer:
        commit = answer.headers.get("X-Repo-Commit", "")
        tag = str(answer.headers.get("X-Linked-Etag") or answer.headers.get("ETag") or "")
        content = _read(answer)
    tag = tag.removeprefix("W/").strip('"')
    return keep_in_cache(settings.folder, hub_id, name, commit=commit, tag=tag, content=content)


def _read(answer: HTTPResponse) -> bytes:
    """Return the content of an answer, within the limits of size and time."""
    end, parts, size = time.monotonic() + _DOWNLOAD_S, list[bytes](), 0
    while part := answer.read1(_CHUNK_BYTES):
        parts.append(part)
        size += len(part)
        if size > _MOST_BYTES:
            raise ValueError(f"it is larger than {_MOST_BYTES // 2**20} MiB")
        if time.monotonic() > end:
            raise ValueError(f"the download took longer than {_DOWNLOAD_S:g} s")
    expected = answer.headers.get("Content-Length")
    if expected is not None and size != int(expected):
        raise ValueError("the download ended early")
    return b"".join(parts)


def _first_line(error: Exception) -> str:
    reason = error.reason if isinstance(error, URLError) else error
    lines = str(reason).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


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
