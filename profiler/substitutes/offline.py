"""No waiting for a hub that does not answer: its clients would ask again for minutes."""

from types import ModuleType

from profiler.seams.patching import Patch
from profiler.storage.foreign.hub import hub_problem


def hub_patches(constants: ModuleType) -> list[Patch]:
    """Return the patch of `huggingface_hub.constants` that switches the client off where the hub does not answer."""
    return [(constants, "HF_HUB_OFFLINE", True)] if hub_problem() else []


def data_hub_patches() -> list[Patch]:
    """Return the patch that switches the client of datasets off where the hub does not answer."""
    import datasets.config

    return [(datasets.config, "HF_HUB_OFFLINE", True)] if hub_problem() else []
