"""Constraints of vLLM, from trl's engine and vLLM's configuration."""

from functools import partial
from math import gcd

from profiler.constraints.constraint import Case, Constraint, Where, anything, stated

_everywhere = partial(Constraint, Where.EVERYWHERE)

_ENGINE = {"vllm_tensor_parallel_size": anything, "use_vllm": True, "num_processes": anything}


def _divides_processes(case: Case) -> bool:
    return case.spec.num_processes % case.spec.vllm_tensor_parallel_size == 0


def _divides_heads(case: Case) -> bool:
    return case.model.num_attention_heads % case.spec.vllm_tensor_parallel_size == 0


def _shares_keys(case: Case) -> bool:
    gpus, keys = case.spec.vllm_tensor_parallel_size, case.model.num_key_value_heads
    return keys % gpus == 0 or gpus % keys == 0


def _smaller_engine(case: Case, fitting: int) -> str:
    """Return the largest size of an engine, below that of the trial, that divides `fitting`."""
    sizes = range(1, case.spec.vllm_tensor_parallel_size)
    return f"Use vllm_tensor_parallel_size={max(size for size in sizes if fitting % size == 0)}."


def _engine_of_heads(case: Case, heads: int) -> str:
    return _smaller_engine(case, gcd(case.spec.vllm_tensor_parallel_size, heads))


def _is_beyond_context(case: Case) -> bool:
    length = case.spec.vllm_max_model_length
    return length is not None and case.architecture is not None and length > case.architecture.context


def _leaves_no_completion(case: Case) -> bool:
    length = case.spec.vllm_max_model_length
    return length is not None and length <= case.spec.max_prompt_length and not _is_beyond_context(case)


OF_VLLM = (
    # `CacheConfig.gpu_memory_utilization`.
    _everywhere(
        {"vllm_gpu_memory_utilization": lambda part: part is not None and not 0 < part <= 1, "use_vllm": True},
        "must be more than 0 and at most 1",
    ),
    # trl's `VLLMGeneration._init_vllm`.
    _everywhere(
        _ENGINE,
        "must divide num_processes={spec.num_processes}, because as many GPUs share each engine of vLLM",
        lambda case: _smaller_engine(case, case.spec.num_processes),
        when=lambda case: not _divides_processes(case),
    ),
    # `ModelConfig.verify_with_parallel_config`.
    _everywhere(
        {**_ENGINE, "model": anything},
        "must divide the {model.num_attention_heads} attention heads of {spec.model}",
        lambda case: _engine_of_heads(case, case.model.num_attention_heads),
        model=anything,
        when=lambda case: _divides_processes(case) and not _divides_heads(case),
    ),
    # `Qwen2Attention` in vLLM.
    _everywhere(
        {**_ENGINE, "model": anything},
        "must divide the {model.num_key_value_heads} heads of keys and values of {spec.model}, "
        "or be a multiple of them",
        lambda case: _engine_of_heads(case, case.model.num_key_value_heads),
        model=anything,
        when=lambda case: _divides_processes(case) and _divides_heads(case) and not _shares_keys(case),
    ),
    # `_get_and_verify_max_len`.
    _everywhere(
        {"vllm_max_model_length": stated, "use_vllm": True, "model": anything},
        "is more than the context of {spec.model}, which has {model.context} tokens",
        "Use at most vllm_max_model_length={model.context}, or scale the positions (rope_scaling in its config.json).",
        model=anything,
        when=_is_beyond_context,
    ),
    _everywhere(
        {
            "vllm_max_model_length": stated,
            "use_vllm": True,
            "max_prompt_length": anything,
            "max_completion_length": anything,
        },
        "leaves nothing for completions after max_prompt_length={spec.max_prompt_length}",
        "Use vllm_max_model_length={spec.row_tokens}.",
        when=_leaves_no_completion,
    ),
)
