"""Whether vLLM would start in the process that trains, in words."""

from bisect import bisect_left
from dataclasses import replace

from profiler.analytical.estimate import estimate
from profiler.analytical.formulas.engine_buffers import accepted_tokens
from profiler.analytical.formulas.sizes.fragments import unreleasable_bytes
from profiler.analytical.formulas.vllm_memory import lacks_cache, needed_cache_bytes, requested_bytes, vllm_memory
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.cards.context import cuda_context_bytes
from profiler.domain.cards.gpu_names import gpu_named
from profiler.domain.trials.trial import TrialSpec
from profiler.domain.units import gib_text


def engine_start_text(spec: TrialSpec, architecture: Architecture) -> str:
    """Return why vLLM refuses to start, with what to change, or nothing if it starts or runs elsewhere."""
    if not spec.use_vllm or not lacks_cache(spec, architecture):
        return ""
    parts, tokens = vllm_memory(spec, architecture), int(accepted_tokens(spec, architecture))
    part, needed = gib_text(int(requested_bytes(spec)), 1), gib_text(int(needed_cache_bytes(spec, architecture)), 1)
    taken = gib_text(int(parts.total - parts.kv_cache), 1)
    return (
        f"vLLM does not start: vllm_gpu_memory_utilization={spec.vllm_gpu_memory_utilization:g} of {spec.gpu} is "
        f"{part}, weights and activations take {taken}, and the KV cache of one sequence of {tokens} tokens needs "
        f"{needed}; {_hint(spec, architecture)}."
    )


def _hint(spec: TrialSpec, architecture: Architecture) -> str:
    """Return with which settings vLLM would start, and whether the job would fit with them.

    Sequences are no longer than those of the job, and the part of the card is the smallest that is enough.
    """
    longest = spec.max_prompt_length + spec.max_completion_length
    job = replace(spec, vllm_max_model_length=longest)
    if not lacks_cache(job, architecture):
        return _checked(job, architecture, f"vllm_max_model_length={longest}")
    now, shorter = _least_part(spec, architecture), _least_part(job, architecture)
    if shorter is None:
        return "no part of the card is enough"
    limit = f" and vllm_max_model_length={longest}" if now != shorter else ""
    started = replace(job if limit else spec, vllm_gpu_memory_utilization=shorter)
    return _checked(started, architecture, f"vllm_gpu_memory_utilization={shorter:g}{limit}")


def _checked(spec: TrialSpec, architecture: Architecture, settings: str) -> str:
    """Return settings with which vLLM starts as advice, if the job also fits with them; else what is missing."""
    card, found = gpu_named(str(spec.gpu)), estimate(spec, architecture)
    context = cuda_context_bytes(card.compute_capability)
    needed = unreleasable_bytes(found.peak_allocated_bytes, found.peak_reserved_bytes or found.peak_allocated_bytes)
    if needed + context <= card.memory_bytes:
        return f"use {settings}"
    whole = f"{gib_text(needed + context)} of {gib_text(card.memory_bytes)}"
    return f"with {settings} it starts, but the job then needs {whole}"


def _least_part(spec: TrialSpec, architecture: Architecture) -> float | None:
    """Return the smallest hundredth of the card with which vLLM starts; None if the whole card is too small."""

    def starts(hundredths: int) -> bool:
        return not lacks_cache(replace(spec, vllm_gpu_memory_utilization=hundredths / 100), architecture)

    least = bisect_left(range(101), True, lo=1, key=starts)
    return least / 100 if least <= 100 else None
