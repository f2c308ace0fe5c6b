"""No waiting for a hub that does not answer."""

import datasets.config
import huggingface_hub.constants

from profiler.seams.patching import Patch
from profiler.storage.hub import hub_problem


def offline_patches() -> list[Patch]:
    """Return the patches that switch the hub's clients off where it does not answer; they ask again for minutes."""
    if not hub_problem():
        return []
    return [(huggingface_hub.constants, "HF_HUB_OFFLINE", True), (datasets.config, "HF_HUB_OFFLINE", True)]
