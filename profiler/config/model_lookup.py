"""Names of the built-in models, which need neither a disk nor a network."""

from pathlib import PurePosixPath

from profiler.config.architecture import read_architecture
from profiler.domain.architecture import Architecture
from profiler.domain.builtin_models import BUILTIN_MODELS, find_builtin


def canonical_model(model: str) -> str:
    """Return the built-in name of `model`, a name or a hub id in any case; `model` itself if it is not built in."""
    builtin = find_builtin(model)
    return builtin.name if builtin else model


def builtin_architecture(model: str) -> Architecture | None:
    """Return the architecture of a built-in model by its name or hub id; None for any other model."""
    builtin = find_builtin(model)
    return read_architecture(builtin.config, model=builtin.name) if builtin else None


def builtin_of_folder(path: str) -> str | None:
    """Return the built-in name of a folder that has the last part of a hub id as its name; None for any other.

    By hand, ``"/models/Qwen2.5-7B-Instruct"``: ``"qwen2.5-7b"``.
    """
    folder = PurePosixPath(path).name.lower()
    for model in BUILTIN_MODELS.values():
        if any(hub_id.rpartition("/")[2].lower() == folder for hub_id in model.hub_ids):
            return model.name
    return None


def checkpoint(model: str) -> str:
    """Return the hub id of the base model of a built-in name; any other model is returned as it is."""
    builtin = BUILTIN_MODELS.get(model.lower())
    return builtin.hub_ids[0] if builtin and builtin.hub_ids else model
