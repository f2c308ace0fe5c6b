"""`torch.cuda.empty_cache` on the simulated GPU: recorded, so that the model of the allocator releases its cache.

transformers' trainer calls it through accelerate when training begins (`Accelerator.free_memory`), and before backward
with `torch_empty_cache_steps`. On a card the first releases the cache that loading left, before the rollout begins.
"""

import gc
from contextlib import AbstractContextManager

import torch
from accelerate.utils import memory as accelerate_memory
from transformers import trainer as transformers_trainer

from profiler.seams.patching import patched
from profiler.simulation.tracing.recorder import Recorder


def emptied_cache(recorder: Recorder) -> AbstractContextManager[None]:
    """While active, emptying the cache of a CUDA device is recorded."""

    def empty_cache() -> None:
        recorder.trace.empty_cache()

    def clear_device_cache(garbage_collection: bool = False) -> None:
        if garbage_collection:
            gc.collect()
        empty_cache()

    return patched(
        [
            (torch.cuda, "empty_cache", empty_cache),
            (accelerate_memory, "clear_device_cache", clear_device_cache),
            (transformers_trainer, "clear_device_cache", clear_device_cache),
        ]
    )
