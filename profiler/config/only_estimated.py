"""What the closed form counts and a sweep does not run yet."""

from collections.abc import Iterable, Iterator

from profiler.domain.errors import Fault
from profiler.domain.gpu import KNOWN_GPUS
from profiler.domain.recipe import Recipe
from profiler.domain.trial import ZERO_OF_WEIGHTS, Backend, DistributedType, TrialSpec, Tuning, VllmMode


def only_estimated(specs: Iterable[TrialSpec]) -> list[Fault]:
    """Return a fault per key that no trial of a sweep has yet, though the closed form counts it."""
    faults: list[Fault] = []
    for spec in specs:
        faults.extend(_engines_not_run(spec))
        if spec.reward_models:
            faults.append(_only_estimated("reward_models", ",".join(spec.reward_models), "reward models"))
        if spec.per_device_eval_batch_size is not None:
            rows = str(spec.per_device_eval_batch_size)
            faults.append(_only_estimated("per_device_eval_batch_size", rows, "evaluations"))
        if spec.images_per_prompt is not None:
            problem = "a sweep does not run models with a vision tower yet"
            hint = "Use `python -m profiler.estimate`."
            faults.append(Fault(key="model", found=spec.model, problem=problem, hint=hint))
        if spec.use_liger_kernel and not spec.backend.reads_counters:
            faults.append(_only_estimated("use_liger_kernel", "true", "Liger's kernels on a simulated card"))
        if spec.gpu is not None and spec.gpu not in KNOWN_GPUS:
            faults.append(_only_estimated("gpu", spec.gpu, "trials on a card that has a size only"))
        if spec.num_processes > 1:
            faults.extend(_processes_not_run(spec))
        if spec.tuning is Tuning.QLORA and spec.zero_stage == ZERO_OF_WEIGHTS:
            problem = "a sweep does not make weights in 4 bits with zero_stage=3, which shards weights as they are made"
            faults.append(Fault(key="tuning", found="qlora", problem=problem, hint="Use zero_stage=2, or tuning=lora."))
    return list(dict.fromkeys(faults))


def _engines_not_run(spec: TrialSpec) -> Iterator[Fault]:
    """Yield the faults of vLLM where a sweep does not run it."""
    if not spec.use_vllm:
        return
    if spec.vllm_mode is VllmMode.SERVER:
        yield Fault(
            key="vllm_mode",
            found="server",
            problem="a sweep does not run vLLM on other GPUs",
            hint="Use vllm_mode=colocate, or `python -m profiler.estimate`.",
        )
    if spec.backend is Backend.CPU:
        problem = "needs backend=cuda, emulated or simulated, because trl runs vLLM on the GPU that trains"
        yield Fault(key="use_vllm", found="true", problem=problem, hint="Set use_vllm=false on the CPU.")
    if spec.tuning is Tuning.QLORA:
        yield _only_estimated("tuning", "qlora", "vLLM with weights in 4 bits")
    if spec.vllm_tensor_parallel_size > 1:
        size = str(spec.vllm_tensor_parallel_size)
        yield _only_estimated("vllm_tensor_parallel_size", size, "an engine of vLLM on several GPUs")
    tokens = spec.max_prompt_length + spec.max_completion_length
    if spec.vllm_max_model_length is not None and spec.vllm_max_model_length < tokens:
        yield Fault(
            key="vllm_max_model_length",
            found=str(spec.vllm_max_model_length),
            problem=f"would cut completions, because prompt and completion of this trial have {tokens} tokens",
            hint=f"Use at least vllm_max_model_length={tokens}.",
        )
    if spec.recipe is not Recipe.GRPO:
        yield _only_estimated("recipe", spec.recipe, "vLLM with this recipe")


def _processes_not_run(spec: TrialSpec) -> Iterator[Fault]:
    """Yield the faults of several processes where a sweep does not run them."""
    if spec.backend is Backend.SIMULATED:
        yield Fault(
            key="num_processes",
            found=str(spec.num_processes),
            problem="a sweep runs several GPUs with backend=cuda or emulated, and this trial has backend=simulated",
            hint="Add backend=emulated, or use `python -m profiler.estimate`.",
        )
    if spec.backend is Backend.CPU and spec.distributed_type is not DistributedType.MULTI_GPU:
        problem = "shards on GPUs only, and this trial has backend=cpu"
        found = spec.distributed_type.value
        yield Fault(key="distributed_type", found=found, problem=problem, hint="Use multi_gpu, or backend=emulated.")


def _only_estimated(key: str, found: str, what: str) -> Fault:
    hint = "Use `python -m profiler.estimate`, or leave the key out."
    return Fault(key=key, found=found, problem=f"a sweep does not run {what} yet", hint=hint)
