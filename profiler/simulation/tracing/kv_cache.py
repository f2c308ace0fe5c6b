"""Attribution of the KV cache: the tensors that transformers' cache layers allocate in `update`."""

from contextlib import AbstractContextManager
from typing import Any

from transformers import cache_utils

from profiler.domain.memory import Category
from profiler.seams.patching import patched
from profiler.simulation.tracing.recorder import Recorder

CACHE_LAYERS = (cache_utils.DynamicLayer, cache_utils.DynamicSlidingWindowLayer)


def attributed_cache(recorder: Recorder) -> AbstractContextManager[None]:
    """While active, tensors made by a growing cache layer are attributed to the KV cache."""
    return patched([(layer, "update", _attributed(layer.update, recorder)) for layer in CACHE_LAYERS])


def _attributed(update: Any, recorder: Recorder) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        with recorder.attributed(Category.KV_CACHE):
            return update(*args, **kwargs)

    return run
