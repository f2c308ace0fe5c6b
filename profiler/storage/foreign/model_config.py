"""The files that a trial refers to: a model's `config.json`, from a local folder or file or the hub, and data.

Hashes of them are part of the trial's id: an edited file is a new trial.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from profiler.config.foreign_text import MOST_JSON_BYTES, ForeignTextError, parse_json
from profiler.config.models.lookup import builtin_of_folder, hub_id_of, suggested_model
from profiler.config.trials.identity import config_hash
from profiler.domain.errors import Fault, UsageError
from profiler.domain.models.builtin_models import BUILTIN_MODELS, find_builtin
from profiler.storage.files.foreign_files import Kind, expanded, kind_of, open_regular, read_bytes, reason

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_NAME_ON_HUB = re.compile(r"[\w.-]+(/[\w.-]+)?")
"""A hub id, or a data set of the hub without an owner."""

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
    hub_id = hub_id_of(model)
    if not _HUB_ID.fullmatch(hub_id):
        raise _unknown(model)
    return _read_json((download or _download)(hub_id), hub_id)


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
        # An early client has kept it under the name without an owner.
        if (early := hub_id.rpartition("/")[2]) != hub_id and hub_id_of(early) == hub_id:
            with suppress(HubError):
                return hub_file(early, _FILE_NAME)
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
                return _hash_of([(path.suffix, path)])
            case Kind.FOLDER:
                return _hash_of([(str(each.relative_to(path)), each) for each in _data_files(path)])
            case Kind.MISSING if _NAME_ON_HUB.fullmatch(source):
                return None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError([Fault(key="dataset", found=source, problem=f"cannot be read ({why})")]) from error
    problem = "must be a local file or folder, or a hub id such as openai/gsm8k"
    raise UsageError([Fault(key="dataset", found=source, problem=problem)])


def _data_files(folder: Path) -> list[Path]:
    """Return the files of a folder, hidden ones excluded."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts))


def _hash_of(files: list[tuple[str, Path]]) -> str:
    whole = hashlib.sha256()
    for name, path in files:
        with open_regular(path) as file:
            whole.update(f"{name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()[:16]
