"""Constraints of sweeps: what the closed form counts and a sweep does not run yet."""

from functools import partial

from profiler.constraints.constraint import (
    Case,
    Constraint,
    Where,
    above,
    anything,
    has_tower,
    one_of,
    other_than,
    stated,
)
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import ZERO_OF_WEIGHTS, Backend, DistributedType, Tuning, VllmMode

_sweep = partial(Constraint, Where.SWEEP)

_WITHOUT_COUNTERS = one_of(*(backend for backend in Backend if not backend.reads_counters))
_NOT_YET = "Use `python -m profiler.estimate`, or leave the key out."

RUN_SCRIPT = "To see what your script needs, run it: python -m profiler.run gpu=CARD train.py."


def _instead_of_a_tower(case: Case) -> str:
    """Return what answers for images: the closed form, which has their prompts for one recipe."""
    return "Use `python -m profiler.estimate`." if case.spec.recipe is Recipe.GRPO else RUN_SCRIPT


SWEEPS = (
    _sweep(
        {"vllm_mode": VllmMode.SERVER, "use_vllm": True},
        "a sweep does not run vLLM on other GPUs",
        "Use vllm_mode=colocate, or `python -m profiler.estimate`.",
    ),
    _sweep(
        {"use_vllm": True, "backend": Backend.CPU},
        "needs backend=cuda, emulated or simulated, because trl runs vLLM on the GPU that trains",
        "Set use_vllm=false on the CPU.",
    ),
    _sweep(
        {"tuning": Tuning.QLORA, "use_vllm": True}, "a sweep does not run vLLM with weights in 4 bits yet", _NOT_YET
    ),
    _sweep(
        {"vllm_tensor_parallel_size": above(1), "use_vllm": True},
        "a sweep does not run an engine of vLLM on several GPUs yet",
        _NOT_YET,
    ),
    _sweep(
        {
            "vllm_max_model_length": stated,
            "use_vllm": True,
            "max_prompt_length": anything,
            "max_completion_length": anything,
        },
        "would cut completions, because prompt and completion of this trial have {spec.row_tokens} tokens",
        "Use at least vllm_max_model_length={spec.row_tokens}.",
        when=lambda case: (case.spec.vllm_max_model_length or 0) < case.spec.row_tokens,
    ),
    _sweep(
        {"recipe": other_than(Recipe.GRPO), "use_vllm": True},
        "a sweep does not run vLLM with this recipe yet",
        _NOT_YET,
    ),
    _sweep({"reward_models": stated}, "a sweep does not run reward models yet", _NOT_YET),
    _sweep({"per_device_eval_batch_size": stated}, "a sweep does not run evaluations yet", _NOT_YET),
    _sweep(
        {"model": anything},
        "a sweep does not run models with a vision tower yet",
        _instead_of_a_tower,
        model=has_tower,
    ),
    _sweep(
        {"use_liger_kernel": True, "backend": _WITHOUT_COUNTERS},
        "a sweep does not run Liger's kernels on a simulated card yet",
        _NOT_YET,
    ),
    _sweep(
        {"gpu": other_than(None, *KNOWN_GPUS)},
        "a sweep does not run trials on a card that has a size only yet",
        _NOT_YET,
    ),
    _sweep(
        {"num_processes": above(1), "backend": Backend.SIMULATED},
        "a sweep runs several GPUs with backend=cuda or emulated, and this trial has backend=simulated",
        "Add backend=emulated, or use `python -m profiler.estimate`.",
    ),
    _sweep(
        {
            "distributed_type": other_than(DistributedType.MULTI_GPU),
            "num_processes": above(1),
            "backend": Backend.CPU,
        },
        "shards on GPUs only, and this trial has backend=cpu",
        "Use multi_gpu, or backend=emulated.",
    ),
    _sweep(
        {"tuning": Tuning.QLORA, "zero_stage": ZERO_OF_WEIGHTS},
        "a sweep does not make weights in 4 bits with zero_stage=3, which shards weights as they are made",
        "Use zero_stage=2, or tuning=lora.",
    ),
)
