"""Whether the engine of a trial or of verl starts, by which settings it would, and what it needs of its own card."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace

from profiler.analytical.estimate import estimate
from profiler.analytical.formulas.sizes.rounding import unreleasable_bytes
from profiler.analytical.formulas.verl_pass import pool_bytes
from profiler.analytical.formulas.vllm_memory import (
    accepted_tokens,
    lacks_cache,
    needed_cache_bytes,
    requested_bytes,
    sent_weights,
    vllm_memory,
)
from profiler.analytical.timeline.recipes.verl import VerlEstimate
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.cards.card import outside_torch_bytes
from profiler.domain.cards.gpu_names import gpu_named
from profiler.domain.memory import gib_text
from profiler.domain.trials.trial import TrialSpec, VllmMode


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
    """Return with which settings vLLM would start: the first with which the job also fits, else the first.

    Sequences are no longer than those of the job, and the part of the card is the smallest that is enough.
    """
    found = list(_settings(spec, architecture))
    if found:
        texts = (_checked(started, architecture, settings) for settings, started in found)
        first = next(texts)
        return next((text for text in (first, *texts) if text.startswith(_ADVICE)), first)
    shared = ", also with vllm_tensor_parallel_size" if spec.num_processes > 1 else ""
    return f"no part of the card is enough{shared}"


def _settings(spec: TrialSpec, architecture: Architecture) -> Iterator[tuple[str, TrialSpec]]:
    """Return settings with which vLLM starts, and the trial with them: on as many GPUs as now, then on more.

    trl asks for a divisor of the processes as the GPUs of one engine, and vLLM for one of the heads.
    """
    longest = spec.max_prompt_length + spec.max_completion_length
    job = replace(spec, vllm_max_model_length=longest)
    if not lacks_cache(job, architecture):
        yield f"vllm_max_model_length={longest}", job
    else:
        now, shorter = _least_part(spec, architecture), _least_part(job, architecture)
        if shorter is not None:
            limit = f" and vllm_max_model_length={longest}" if now != shorter else ""
            started = replace(job if limit else spec, vllm_gpu_memory_utilization=shorter)
            yield f"vllm_gpu_memory_utilization={shorter:g}{limit}", started
    for size in range(job.vllm_tensor_parallel_size + 1, job.num_processes + 1):
        if job.num_processes % size or architecture.num_attention_heads % size:
            continue
        shared = replace(job, vllm_tensor_parallel_size=size)
        if (part := _least_part(shared, architecture)) is not None:
            settings = f"vllm_tensor_parallel_size={size}, vllm_gpu_memory_utilization={part:g} and "
            yield f"{settings}vllm_max_model_length={longest}", replace(shared, vllm_gpu_memory_utilization=part)


def _checked(spec: TrialSpec, architecture: Architecture, settings: str) -> str:
    """Return settings with which vLLM starts as advice, if the job also fits with them; else what is missing."""
    card, found = gpu_named(str(spec.gpu)), estimate(spec, architecture)
    context = outside_torch_bytes(card.compute_capability, spec.num_processes)
    needed = unreleasable_bytes(found.peak_allocated_bytes, found.reserved_bytes)
    if needed + context <= card.memory_bytes:
        return f"{_ADVICE}{settings}"
    whole = f"{gib_text(needed + context)} of {gib_text(card.memory_bytes)}"
    return f"with {settings} it starts, but the job then needs {whole}"


_ADVICE = "use "


def _least_part(spec: TrialSpec, architecture: Architecture) -> float | None:
    """Return the smallest hundredth of the card with which vLLM starts; None if the whole card is too small."""

    def starts(hundredths: int) -> bool:
        return not lacks_cache(replace(spec, vllm_gpu_memory_utilization=hundredths / 100), architecture)

    least = bisect_left(range(101), True, lo=1, key=starts)
    return least / 100 if least <= 100 else None


_SERVER_PART = 0.9


def server_text(spec: TrialSpec, architecture: Architecture) -> str:
    """Return what the engine of `vllm_mode=server` needs of a card of its own; nothing without one.

    A file of the trainer does not say how the server is started, so it is that of `trl vllm-serve` with its defaults:
    one GPU, 0.9 of it, and sequences as long as the context of the model. As many as a generation has run at once.

    By hand, qwen2.5-7b on an H100: 0.9 x 84,944,093,184 B = 71.2 GiB, and 7,615,616,512 x 2 B = 14.2 GiB of weights.
    The KV cache is up to 4 % too large (qwen2.5-0.5b, emulated with vLLM 0.24: 67.5 GiB instead of 70.1): the server's
    profile run samples for 1,024 sequences, which is left out.

    Source: `ScriptArguments` in trl 1.16's `trl/scripts/vllm_serve.py`.
    """
    if not spec.use_vllm or spec.vllm_mode is not VllmMode.SERVER:
        return ""
    alone = replace(
        spec,
        vllm_mode=VllmMode.COLOCATE,
        vllm_gpu_memory_utilization=_SERVER_PART,
        vllm_enable_sleep_mode=False,
        vllm_max_model_length=None,
        vllm_tensor_parallel_size=1,
    )
    card, parts = gpu_named(str(spec.gpu)), vllm_memory(alone, architecture)
    part = f"{gib_text(int(requested_bytes(alone)), 1)} of the {gib_text(card.memory_bytes, 1)} of {card.name}"
    weights = f"{gib_text(int(parts.weights), 1)} of weights"
    if not lacks_cache(alone, architecture):
        cache, sent = gib_text(int(parts.kv_cache), 1), gib_text(int(sent_weights(spec, architecture).size), 1)
        return (
            f"The engine, on a card of its own, takes {part} by trl vllm-serve's defaults: {weights}, {cache} of KV "
            f"cache. From trl 1.11 on, weights on their way to it take up to {sent} more on both cards; cached, they "
            "add up over the first 16 steps or until a card is full."
        )
    way = next((words for words, there in _servers(alone) if not lacks_cache(there, architecture)), "")
    hint = f"start it with {way}" if way else "nor on 8 of them"
    return f"The engine does not start on a card of its own, with {weights} in {part}; {hint}."


def _servers(alone: TrialSpec) -> Iterator[tuple[str, TrialSpec]]:
    """Yield ways to start an engine that needs less of each card, with the words of `trl vllm-serve`."""
    longest = alone.max_prompt_length + alone.max_completion_length
    for gpus in (1, 2, 4, 8):
        for length in (None, longest):
            words = [f"--tensor_parallel_size {gpus}"] if gpus > 1 else []
            words += [f"--max_model_len {length}"] if length else []
            yield " ".join(words), replace(alone, vllm_tensor_parallel_size=gpus, vllm_max_model_length=length)


def engine_text(found: VerlEstimate) -> str:
    """Return why the rollout engine cannot start, with what to change; empty if its pool is larger than its weights.

    An engine also needs activations and a KV cache, which are not counted, so that it may need more.

    By hand, qwen2.5-32b on one of 64 H100: 61.0 GiB of weights, and 0.5 of 79.1 GiB.
    """
    job = found.job
    pool, weights = pool_bytes(job, found.gpu.memory_bytes), found.engine_weights_bytes
    if weights < pool or not job.engine.has_pool:
        return ""
    of_all = weights * job.rollout_tensor_parallel_size
    size = next((each for each in found.engine_sizes if of_all < pool * each), None)
    part = weights * 100 // found.gpu.memory_bytes + 1
    ways = [
        *([f"rollout.tensor_model_parallel_size={size}"] if size is not None else ()),
        *([f"rollout.gpu_memory_utilization={part / 100:g}"] if part <= _MOST_PERCENT else ()),
    ]
    hint = f"use at least {' or '.join(ways)}" if ways else "use more GPUs, and tensor_model_parallel_size"
    return (
        f"{job.engine.title} does not start: gpu_memory_utilization={job.gpu_memory_utilization:g} of {found.gpu.name} "
        f"is {gib_text(pool)}, and its weights take {gib_text(weights)}; {hint}."
    )


_MOST_PERCENT = 95
"""Largest part of a card that is named: the rest is the CUDA context, and what others keep."""
