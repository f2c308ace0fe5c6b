"""A model's `config.json`, from a local folder or file, or from the Hugging Face hub."""

import json
import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from profiler.domain.builtin_models import BUILTIN_MODELS
from profiler.domain.errors import Fault, UsageError, nearest

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")

_FILE_NAME = "config.json"

_HUB_TIMEOUT_S = 10


def load_model_config(model: str, *, download: Callable[[str], Path] | None = None) -> Mapping[str, object]:
    """Return the content of the `config.json` of `model`, which is not built in.

    Args:
        model: A local folder, the path of a `config.json`, or a hub id.
        download: Fetches the file of a hub id; Hugging Face's client where not given.

    Raises:
        UsageError: There is no such file, it is unavailable, or it is not a JSON object.
    """
    local = _local_file(model)
    if local is not None:
        return _read_json(local, model)
    if not _HUB_ID.fullmatch(model):
        raise _unknown(model)
    return _read_json((download or _download)(model), model)


def is_local(model: str) -> bool:
    """Return whether `model` names a folder or a file on this machine."""
    try:
        return Path(model).expanduser().exists()
    except (OSError, RuntimeError, ValueError):
        return False


def _local_file(model: str) -> Path | None:
    """Return the local file that `model` names; None if there is none, so that it may be a hub id."""
    path = Path(model).expanduser()
    if path.is_dir():
        path = path / _FILE_NAME
    if path.is_file():
        return path
    looks_local = model.startswith(("/", "./", "../", "~")) or model.endswith(".json") or path.name == _FILE_NAME
    if looks_local:
        raise _fault(model, f"there is no file {path}", f"Name a folder with a {_FILE_NAME}, or the file itself.")
    return None


def _read_json(path: Path, model: str) -> Mapping[str, object]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _fault(model, f"{path} cannot be read as JSON ({_first_line(error)})") from error
    if not isinstance(content, dict):
        raise _fault(model, f"{path} holds no JSON object")
    return content


def _download(hub_id: str) -> Path:
    # Imported here, because most sweeps need no network.
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError

    # It logs every retry; the result is reported once, below.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        return Path(hf_hub_download(hub_id, _FILE_NAME, etag_timeout=_HUB_TIMEOUT_S))
    except (HfHubHTTPError, EntryNotFoundError, HFValidationError, OSError) as error:
        hint = nearest(hub_id, _builtin_hub_ids()) or "A local folder needs no network."
        reason = f"its {_FILE_NAME} is unavailable from the hub ({_first_line(error)})"
        raise _fault(hub_id, reason, hint) from error


def _unknown(model: str) -> UsageError:
    names = tuple(BUILTIN_MODELS)
    return _fault(
        model,
        f"must be a built-in name ({', '.join(names)}), a local path or a hub id such as Qwen/Qwen2.5-7B-Instruct",
        nearest(model, names),
    )


def _builtin_hub_ids() -> tuple[str, ...]:
    return tuple(hub_id for model in BUILTIN_MODELS.values() for hub_id in model.hub_ids)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _fault(model: str, problem: str, hint: str = "") -> UsageError:
    return UsageError([Fault(key="model", found=model, problem=problem, hint=hint)])
