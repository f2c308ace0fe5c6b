"""Rules between the keys of vLLM, from trl's engine and vLLM's configuration."""

from collections.abc import Iterator
from math import gcd

from profiler.config.rule import Rule
from profiler.domain.architecture import Architecture
from profiler.domain.errors import Fault
from profiler.domain.trial import TrialSpec


def _takes_a_part_of_the_card(spec: TrialSpec, _: Architecture | None) -> Iterator[Fault]:
    """Check vLLM's own rule (`CacheConfig.gpu_memory_utilization`)."""
    part = spec.vllm_gpu_memory_utilization
    if part is not None and not 0 < part <= 1:
        yield Fault(key="vllm_gpu_memory_utilization", found=f"{part:g}", problem="must be more than 0 and at most 1")


def _engine_is_shared_evenly(spec: TrialSpec, architecture: Architecture | None) -> Iterator[Fault]:
    """Check trl's rule (`VLLMGeneration._init_vllm`), and vLLM's on heads (`ModelConfig.verify_with_parallel_config`).

    The rule on heads of keys and values is that of `Qwen2Attention` in vLLM.
    """
    gpus, problem, fitting = spec.vllm_tensor_parallel_size, "", spec.num_processes
    if spec.num_processes % gpus:
        problem = f"must divide num_processes={spec.num_processes}, because as many GPUs share each engine of vLLM"
    elif architecture is not None:
        heads, keys = architecture.num_attention_heads, architecture.num_key_value_heads
        if heads % gpus:
            problem, fitting = f"must divide the {heads} attention heads of {spec.model}", gcd(gpus, heads)
        elif keys % gpus and gpus % keys:
            problem = f"must divide the {keys} heads of keys and values of {spec.model}, or be a multiple of them"
            fitting = gcd(gpus, keys)
    if problem:
        largest = max(size for size in range(1, gpus) if fitting % size == 0)
        yield Fault(
            key="vllm_tensor_parallel_size",
            found=str(gpus),
            problem=problem,
            hint=f"Use vllm_tensor_parallel_size={largest}.",
        )


def _engine_accepts_prompts(spec: TrialSpec, architecture: Architecture | None) -> Iterator[Fault]:
    """Check that vLLM takes the length (`_get_and_verify_max_len`) and the prompts."""
    length, problem, hint = spec.vllm_max_model_length, "", ""
    if length is None:
        return
    if architecture is not None and length > (context := architecture.context):
        problem = f"is more than the context of {spec.model}, which has {context} tokens"
        hint = f"Use at most vllm_max_model_length={context}, or scale the positions (rope_scaling in its config.json)."
    elif length <= spec.max_prompt_length:
        problem = f"leaves nothing for completions after max_prompt_length={spec.max_prompt_length}"
        hint = f"Use vllm_max_model_length={spec.max_prompt_length + spec.max_completion_length}."
    if problem:
        yield Fault(key="vllm_max_model_length", found=str(length), problem=problem, hint=hint)


VLLM_RULES = (
    Rule(keys=("use_vllm", "vllm_gpu_memory_utilization"), check=_takes_a_part_of_the_card),
    Rule(keys=("use_vllm", "vllm_tensor_parallel_size", "num_processes", "model"), check=_engine_is_shared_evenly),
    Rule(
        keys=("use_vllm", "vllm_max_model_length", "model", "max_prompt_length", "max_completion_length"),
        check=_engine_accepts_prompts,
    ),
)
