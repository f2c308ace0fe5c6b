"""A model's `config.json`, from a local folder or file, or from the Hugging Face hub."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from profiler.config.foreign_text import MOST_JSON_BYTES, ForeignTextError, parse_json
from profiler.config.models.lookup import builtin_of_folder, suggested_model
from profiler.domain.errors import Fault, UsageError
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.storage.files.foreign_files import Kind, expanded, kind_of, open_regular, read_bytes, reason

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")

_FILE_NAME = "config.json"
_LOADED = ("*.safetensors", "*.bin", "tokenizer*", "vocab*")
"""Files that transformers loads from a folder besides its `config.json`."""

_WHAT_TO_NAME = f"Name a folder with a {_FILE_NAME}, or the file itself."


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


def check_weights(model: str) -> None:
    """Check that the weights and the tokenizer of a local folder are there, where a trial loads them.

    A folder that was cloned without git-LFS has pointers in their place, next to a whole `config.json`.

    Raises:
        UsageError: A file of them cannot be read.
    """
    if not is_local(model):
        return
    folder = expanded(model) if kind_of(expanded(model)) is Kind.FOLDER else expanded(model).parent
    for path in sorted(path for pattern in _LOADED for path in folder.glob(pattern)):
        try:
            if kind_of(path) is Kind.FILE:
                open_regular(path).close()
        except OSError as error:
            raise _fault(model, f"{path} cannot be read ({reason(error)})") from error


def is_local(source: str) -> bool:
    """Return whether `source` names a folder or a file on this machine."""
    try:
        return kind_of(expanded(source)) is not Kind.MISSING
    except OSError:
        return False


def _local_file(model: str) -> Path | None:
    """Return the local file that `model` names; None if there is none, so that it may be a hub id."""
    try:
        path = expanded(model)
        if kind_of(path) is Kind.FOLDER:
            path = path / _FILE_NAME
        kind = kind_of(path)
    except OSError as error:
        raise _fault(model, f"cannot be read ({reason(error)})", _what_to_name(model)) from error
    if kind is Kind.FILE:
        return path
    if kind is Kind.OTHER:
        raise _fault(model, f"{path} is not a regular file", _what_to_name(model))
    looks_local = model.startswith(("/", "./", "../", "~")) or model.endswith(".json") or path.name == _FILE_NAME
    if looks_local:
        raise _fault(model, f"there is no file {path}", _what_to_name(model))
    return None


def _read_json(path: Path, model: str) -> Mapping[str, object]:
    try:
        content = parse_json(read_bytes(path, most_bytes=MOST_JSON_BYTES))
    except OSError as error:
        raise _fault(model, f"{path} cannot be read as JSON ({reason(error)})") from error
    except ForeignTextError as error:
        raise _fault(model, f"{path} {error}") from error
    if not isinstance(content, dict):
        raise _fault(model, f"{path} holds no JSON object")
    return content


def _download(hub_id: str) -> Path:
    from profiler.storage.foreign.hub import HubError, hub_file  # HTTP takes 15 ms, and most models are built in

    try:
        return hub_file(hub_id, _FILE_NAME)
    except HubError as error:
        no_network = f"A local folder with its {_FILE_NAME} needs no network."
        hint = suggested_model(hub_id, _builtin_hub_ids()) or f"{no_network}{_by_name(hub_id)}"
        raise _fault(hub_id, f"its {_FILE_NAME} is unavailable from the hub ({error})", hint) from error


def _unknown(model: str) -> UsageError:
    names = tuple(BUILTIN_MODELS)
    return _fault(
        model,
        f"must be a built-in name ({', '.join(names)}), a local path or a hub id such as Qwen/Qwen2.5-7B-Instruct",
        suggested_model(model, names),
    )


def _what_to_name(model: str) -> str:
    return f"{_WHAT_TO_NAME}{_by_name(model)}"


def _by_name(model: str) -> str:
    """Return the built-in model that a path or hub id is named after, as a sentence; empty for none."""
    found = builtin_of_folder(model)
    return f" By its name it has the architecture of model={found}." if found is not None else ""


def _builtin_hub_ids() -> tuple[str, ...]:
    return tuple(hub_id for model in BUILTIN_MODELS.values() for hub_id in model.hub_ids)


def _fault(model: str, problem: str, hint: str = "") -> UsageError:
    return UsageError([Fault(key="model", found=model, problem=problem, hint=hint)])
