"""Attribution of the KV cache: the tensors that transformers' cache layers allocate.

Layers with attention grow in `update`. Layers with linear attention make states of constant size once.
"""

from contextlib import AbstractContextManager
from typing import Any

from transformers import cache_utils

from profiler.domain.memory import Category
from profiler.seams.patching import patched
from profiler.simulation.tracing.recorder import Recorder

CACHE_LAYERS = (cache_utils.DynamicLayer, cache_utils.DynamicSlidingWindowLayer)

_LINEAR_LAYER = "LinearAttentionLayer"
"""The cache layer of linear attention, which transformers before 5 does not have."""


def attributed_cache(recorder: Recorder) -> AbstractContextManager[None]:
    """While active, tensors that cache layers make for themselves are attributed to the KV cache."""
    makers = [(layer, "update") for layer in CACHE_LAYERS]
    if (linear := getattr(cache_utils, _LINEAR_LAYER, None)) is not None:
        makers.append((linear, "lazy_initialization"))
    return patched([(layer, name, _attributed(getattr(layer, name), recorder)) for layer, name in makers])


def _attributed(make: Any, recorder: Recorder) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        with recorder.attributed(Category.KV_CACHE):
            return make(*args, **kwargs)

    return run
