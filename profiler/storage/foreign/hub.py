"""Files of the Hugging Face hub, with an answer within seconds also where there is no network.

The hub's own client repeats a failed request for half a minute. Here the hub is asked once per process whether it
answers; if it does not, or `HF_HUB_OFFLINE` is set, the file is taken from the local cache.
"""

import logging
import threading
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

ANSWER_S = 2.0
"""Time in which the hub has to answer at all; name resolution included, which has no time limit of its own."""

_DOWNLOAD_S = 10
"""Time limit of each request to a hub that answers."""


class HubError(Exception):
    """A file of the hub is unavailable; the message is the reason."""


def hub_file(hub_id: str, name: str) -> Path:
    """Return the local path of a file of the hub, downloaded if the hub answers and has a newer one.

    Raises:
        HubError: It is neither available from the hub nor in the local cache.
    """
    try:
        # Imported here, because most commands need no network. Its settings are read from the environment.
        from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache
        from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError
    except ValueError as error:
        raise HubError(f"a variable HF_* of the environment cannot be read: {_first_line(error)}") from error
    # It logs every retry; the result is reported once, by the caller.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    problem = _setting_problem(constants.ENDPOINT)
    if problem:
        raise HubError(problem)
    problem = hub_problem()
    try:
        if not problem:
            return Path(hf_hub_download(hub_id, name, etag_timeout=_DOWNLOAD_S))
        cached = try_to_load_from_cache(hub_id, name)  # hf_hub_download would ask the network for its own purposes
    except (HfHubHTTPError, EntryNotFoundError, HFValidationError, OSError, ValueError) as error:
        raise HubError(_first_line(error)) from error
    if not isinstance(cached, str):
        raise HubError(f"{problem}, and the local cache has no copy")
    return Path(cached)


def cached_file(hub_id: str, name: str) -> Path | None:
    """Return the local path of a file of the hub that the cache has; nothing is asked of the network."""
    try:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(hub_id, name)
    except (ImportError, OSError, ValueError):
        return None
    return Path(found) if isinstance(found, str) else None


def hub_problem() -> str:
    """Return why nothing can be asked of the hub; empty if it answers. It is asked once per process."""
    from huggingface_hub import constants

    problem = _setting_problem(constants.ENDPOINT)
    if problem or constants.HF_HUB_OFFLINE:
        return problem or "HF_HUB_OFFLINE is set"
    return _silence(constants.ENDPOINT)


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
    from huggingface_hub import get_session

    try:
        get_session().head(endpoint, timeout=ANSWER_S)
    except Exception as error:  # of whichever library the client uses
        return f"{endpoint} cannot be reached ({_first_line(error)})"
    return ""


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
