"""Files of the Hugging Face hub by the standard library, with an answer within seconds also where there is no network.

The hub is asked once per process whether it answers; if it does not, or `HF_HUB_OFFLINE` is set, the file is taken from
the local cache of the hub's own client, which also keeps what is downloaded here.
"""

import threading
import time
from functools import cache
from http.client import HTTPException, HTTPMessage, HTTPResponse
from pathlib import Path
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from profiler.storage.foreign.hub_cache import HUB_ID, HubSettings, find_in_cache, hub_settings, keep_in_cache

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
