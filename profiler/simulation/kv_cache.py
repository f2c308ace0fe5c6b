"""Which memory of the simulated GPU is KV cache: what transformers' cache layers make when they take in a step.

The only file that touches the cache classes; a test tells when they move.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import cache_utils

from profiler.domain.memory import Category
from profiler.simulation.recorder import Recorder

CACHE_LAYERS = (cache_utils.DynamicLayer, cache_utils.DynamicSlidingWindowLayer)


@contextmanager
def attributed_cache(recorder: Recorder) -> Iterator[None]:
    """While active, tensors made by a growing cache layer are attributed to the KV cache."""
    originals = [(layer, layer.update) for layer in CACHE_LAYERS]
    for layer, update in originals:
        layer.update = _attributed(update, recorder)
    try:
        yield
    finally:
        for layer, update in originals:
            layer.update = update


def _attributed(update: Any, recorder: Recorder) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        with recorder.attributed(Category.KV_CACHE):
            return update(*args, **kwargs)

    return run
