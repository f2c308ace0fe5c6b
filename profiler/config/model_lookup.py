"""Names of models that are known without a disk or a network."""

from profiler.config.architecture import read_architecture
from profiler.domain.architecture import Architecture
from profiler.domain.builtin_models import BUILTIN_MODELS, find_builtin


def canonical_model(model: str) -> str:
    """The built-in name that `model` (a name or a hub id, case ignored) stands for; `model` itself if there is none."""
    builtin = find_builtin(model)
    return builtin.name if builtin else model


def builtin_architecture(model: str) -> Architecture | None:
    """The architecture of a built-in model by its name or hub id; None for any other model."""
    builtin = find_builtin(model)
    return read_architecture(builtin.config, model=builtin.name) if builtin else None


def checkpoint(model: str) -> str:
    """The hub id whose weights a built-in name stands for, that of the base model; any other model is its own."""
    builtin = BUILTIN_MODELS.get(model.lower())
    return builtin.hub_ids[0] if builtin and builtin.hub_ids else model
