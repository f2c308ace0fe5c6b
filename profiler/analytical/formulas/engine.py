"""vLLM in the process that trains, and the buffers of data parallelism: blocks of one size each."""

from profiler.analytical.formulas.quantities import Count, Flag, both, holds, looked_up, rounded_down, where
from profiler.analytical.formulas.trained import gradient_bytes
from profiler.analytical.formulas.trial_keys import DecoderShape, TrialKeys
from profiler.domain.gpu_names import gpu_named
from profiler.domain.trial import VllmMode

DEFAULT_CARD = "h100-80gb"
"""The card that is assumed where none is named."""


def engine_bytes(spec: TrialKeys) -> Count:
    """Return the bytes of vLLM on the GPU that trains, while it generates; 0 if it runs elsewhere.

    vLLM asks for `gpu_memory_utilization` of the card and gives its KV cache what is left of that after its weights,
    the activations of its profile run and its libraries. So the sum is known without knowing the parts. CUDA graphs are
    captured afterwards and come on top; they are left out.

    By hand, 0.3 of an H100 with 84,944,093,184 B: 25,483,227,955 B.

    Source: `determine_available_memory` in `vllm/v1/worker/gpu_worker.py`, and `memory_profiling` in
    `vllm/utils/mem_utils.py`.
    """
    if not spec.use_vllm:
        return 0
    utilization = 0.0 if spec.vllm_gpu_memory_utilization is None else spec.vllm_gpu_memory_utilization
    return where(_is_colocated(spec), rounded_down(utilization * looked_up(spec.gpu, _card_bytes)), 0)


def resident_engine_bytes(spec: TrialKeys) -> Count:
    """Return the bytes of vLLM while the model trains: all of it, or none with `vllm_enable_sleep_mode`.

    trl puts the engine to sleep at level 2 after each rollout, which frees weights and cache (`VLLMGeneration.generate`
    in trl 1.16). The activations of the profile run are free for training either way; they are counted here, because
    their size depends on the engine's kernels.
    """
    if not spec.use_vllm:
        return 0
    return where(_sleeps(spec), 0, engine_bytes(spec))


def bucket_bytes(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the bytes of DDP's buckets: one value per trained parameter; 0 for a single process.

    They exist alongside the gradients, because accelerate leaves `gradient_as_bucket_view` off.

    By hand, qwen2.5-0.5b full in bfloat16 on 2 GPUs: 494,032,768 x 2 B = 988,065,536 B.

    Source: `Reducer::initialize_buckets` in torch's `csrc/distributed/c10d/reducer.cpp`.
    """
    return where(spec.num_processes > 1, gradient_bytes(spec, architecture), 0)


def _is_colocated(spec: TrialKeys) -> Flag:
    return holds(spec.vllm_mode, lambda mode: mode is VllmMode.COLOCATE)


def _sleeps(spec: TrialKeys) -> Flag:
    sleep = spec.vllm_enable_sleep_mode
    return both(_is_colocated(spec), False if sleep is None else sleep)


def _card_bytes(gpu: str | None) -> int:
    return gpu_named(gpu or DEFAULT_CARD).memory_bytes
