"""Whether vLLM would start in the process that trains, in words."""

from profiler.analytical.formulas.engine import engine_parts, lacks_cache, needed_cache_bytes, requested_bytes
from profiler.analytical.formulas.engine_buffers import accepted_tokens
from profiler.domain.architecture import Architecture
from profiler.domain.trial import TrialSpec
from profiler.domain.units import gib_text


def engine_start_line(spec: TrialSpec, architecture: Architecture) -> str:
    """Return why vLLM refuses to start, with what to change, or nothing if it starts or runs elsewhere."""
    if not spec.use_vllm or not lacks_cache(spec, architecture):
        return ""
    parts, tokens = engine_parts(spec, architecture), int(accepted_tokens(spec, architecture))
    part, needed = gib_text(int(requested_bytes(spec)), 1), gib_text(int(needed_cache_bytes(spec, architecture)), 1)
    taken = gib_text(int(parts.total - parts.kv_cache), 1)
    shortest = spec.max_prompt_length + spec.max_completion_length
    shorter = f"vllm_max_model_length={shortest} or " if tokens > shortest else ""
    return (
        f"vLLM does not start: vllm_gpu_memory_utilization={spec.vllm_gpu_memory_utilization:g} of {spec.gpu} is "
        f"{part}, weights and activations take {taken}, and the KV cache of one sequence of {tokens} tokens needs "
        f"{needed}; use {shorter}a larger part."
    )
