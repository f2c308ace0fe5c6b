"""The table of constraints: every combination of keys that a command refuses, one row each."""

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial

from profiler.constraints.commands import CARDS, CLOSED_FORM, SWEEPS
from profiler.constraints.constraint import SPLIT_ROWS, Case, Constraint, Where, anything, one_of, other_than
from profiler.constraints.everywhere import EVERYWHERE
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.errors import Fault, UsageError
from profiler.domain.trials.kernels import FLASH_ATTENTION, FLASH_OF_FLOAT32, WIDEST_FLASH_HEAD, gives_float32_to_flash
from profiler.domain.trials.optimizers import Kernels, Optimizer
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import Attention, Backend, DistributedType, Dtype, Logprobs, TrialSpec, Tuning

ArchitectureLookup = Callable[[str], Architecture | None]

_types = partial(Constraint, Where.EVERYWHERE)
_OF_OPENRLHF = tuple(each for each in Logprobs if each.is_of_openrlhf)

OF_ONE_GPU = (
    _types(
        {"distributed_type": one_of(DistributedType.MULTI_GPU, DistributedType.FSDP), "num_processes": 1},
        "needs several GPUs, and num_processes is 1",
        "Set num_processes to 2 or more.",
    ),
)
"""What trains on several GPUs only. DeepSpeed also trains on one, with float32 copies of the weights."""

OF_TYPES = (
    # `TrainingArguments.__post_init__`.
    _types({"fp16": True, "bf16": True}, "is not combined with bf16=true", "Use one of them."),
    # `Accelerator.__init__` of accelerate 1.15: there is no autocast, and nothing is scaled.
    _types(
        {"fp16": True, "backend": Backend.CPU},
        "needs backend=cuda, emulated or simulated, because accelerate leaves it out on the CPU",
        "Set fp16=false.",
    ),
    _types(
        {"fp16": True, "tuning": Tuning.QLORA},
        "scales gradients, which torch cannot do in bfloat16, to which today's trl casts adapters over 4-bit weights",
        "Use bf16=true on a card that has it, or fp16=false with bf16=false.",
    ),
    # `GradScaler._unscale_grads_` refuses float16, and `AmpKernels.cu` has no kernel for bfloat16.
    # peft trains the head of a reward model as a whole, in the type of the weights.
    _types(
        {"fp16": True, "tuning": anything, "dtype": other_than(Dtype.FLOAT32), "recipe": anything},
        "scales gradients, which torch does in float32 only, and with tuning={spec.tuning} recipe={spec.recipe} "
        "trains weights in dtype={spec.dtype}",
        "Use dtype=float32.",
        when=lambda case: case.spec.tuning is Tuning.FULL or not case.spec.recipe.facts.has_lm_head,
    ),
    _types(
        {"fp16": True, "distributed_type": one_of(DistributedType.FSDP, DistributedType.DEEPSPEED)},
        "was never compared with distributed_type={spec.distributed_type}, which scales gradients in its own way",
        "Use bf16=true.",
    ),
    _types(
        {"fp16": True, "critic": True}, "is not combined with critic=true, whose loss is not scaled", "Use bf16=true."
    ),
    _types(
        {"attn_implementation": Attention.FLASH_ATTENTION_2, "model": anything},
        f"has heads of at most {WIDEST_FLASH_HEAD}, and {{model.model_type}} has heads of {{model.head_dim}}",
        FLASH_ATTENTION.hint,
        model=lambda model: model.head_dim > WIDEST_FLASH_HEAD,
    ),
    # `profiler.domain.trials.kernels` says so of an estimate, which can still be described.
    Constraint(
        Where.SWEEP,
        {
            "attn_implementation": Attention.FLASH_ATTENTION_2,
            "dtype": Dtype.FLOAT32,
            "tuning": other_than(Tuning.FULL),
            "use_vllm": False,
        },
        "takes 16-bit values, and tuning={spec.tuning} generates without autocast in dtype=float32",
        FLASH_OF_FLOAT32.hint,
        when=lambda case: gives_float32_to_flash(case.spec),
    ),
    _types(
        {"logprobs": one_of(*_OF_OPENRLHF), "distributed_type": other_than(DistributedType.DEEPSPEED)},
        "is the loss of OpenRLHF, which trains by DeepSpeed only, and distributed_type is {spec.distributed_type}",
        "Set distributed_type=deepspeed.",
    ),
)
"""Types and widths of values that libraries refuse: float16 scales gradients, which torch 2.13 does in float32 only."""

_RMSPROP = {
    "optim": one_of(Optimizer.RMSPROP_8BIT, Optimizer.RMSPROP_32BIT),
    "tuning": anything,
    "dtype": anything,
    "recipe": anything,
}
_NO_UPDATE = (
    "has no kernel in bitsandbytes for gradients in bfloat16 and states in 32 bits, which embeddings and tensors below "
    "4,096 values always have, so the first step fails"
)


def _other_update(case: Case) -> str:
    """Return the advice to take another optimizer or tuning."""
    if case.spec.tuning is Tuning.QLORA and case.spec.optim is Optimizer.RMSPROP_8BIT:
        return "Use a larger lora_rank, other lora_target_modules, or another optimizer."
    other = ", or tuning=lora, whose adapters are in float32" if case.spec.recipe.facts.has_lm_head else ""
    return f"Use another optimizer{other}."


def _lacks_update(case: Case) -> bool:
    """Hold where a trained tensor in bfloat16 has states in 32 bits.

    All weights in bfloat16 have an embedding among them; trl casts adapters over 4 bits; and the head of a reward model
    is trained in the type of the weights.
    """
    spec = case.spec
    if spec.tuning is Tuning.FULL:
        return spec.dtype is Dtype.BFLOAT16
    trains_head = not spec.recipe.facts.has_lm_head and spec.dtype is Dtype.BFLOAT16
    narrow = spec.optim is Optimizer.RMSPROP_8BIT
    return (spec.tuning is Tuning.QLORA or trains_head) and (case.has_wide_states or not narrow)


_OF_TENSORS = {
    "optim": one_of(*(each for each in Optimizer if each.traits.kernels is Kernels.BITSANDBYTES), Optimizer.ADAFACTOR),
    "distributed_type": DistributedType.FSDP,
    "fsdp_version": 2,
}
_NO_SHARDS = "takes no DTensor in torch 2.13, of which FSDP 2 makes the parameters, so the first step fails"

FAILING = tuple(
    row
    for where in (Where.SWEEP, Where.CLOSED_FORM)
    for row in (
        # `str2optimizer32bit` in bitsandbytes' `backends/cuda/ops.py`, 0.50; results/reference/optimizers has two.
        Constraint(where, _RMSPROP, _NO_UPDATE, _other_update, when=_lacks_update),
        # The operators of bitsandbytes have no sharding strategy, and states of other tensors are mixed with DTensors,
        # in `Adafactor.step` of transformers 5.23 too. All 54 such trials of results/reference/benchmark fail.
        Constraint(where, _OF_TENSORS, _NO_SHARDS, "Use adamw_torch_fused, adamw_torch or sgd."),
    )
)
"""Optimizers whose first step fails."""

CONSTRAINTS: tuple[Constraint, ...] = (
    *OF_ONE_GPU,
    *EVERYWHERE,
    SPLIT_ROWS,
    *OF_TYPES,
    *FAILING,
    *SWEEPS,
    *CLOSED_FORM,
    *CARDS,
)


def broken(case: Case, where: Where) -> Iterator[Constraint]:
    """Yield the constraints of some commands that a trial breaks, in the order of the table."""
    return (constraint for constraint in _rows(where, case.spec.recipe) if constraint.is_broken(case))


@cache
def _rows(where: Where, recipe: Recipe) -> tuple[Constraint, ...]:
    return tuple(each for each in CONSTRAINTS if each.where is where and each.is_about(recipe))


def faults_everywhere(case: Case, *, sound: Callable[..., bool] = lambda *_: True) -> list[Fault]:
    """Return what every command says of a trial.

    Args:
        case: The trial.
        sound: Whether none of some keys has a fault already.
    """
    if not sound("recipe"):
        return []
    return [each.fault(case) for each in broken(case, Where.EVERYWHERE) if sound(*each.values)]


def faults_in_a_sweep(specs: Iterable[TrialSpec], architecture_of: ArchitectureLookup) -> list[Fault]:
    """Return what only a sweep says of its trials, each once: the closed form counts them.

    Args:
        specs: The trials.
        architecture_of: The architecture of a model; None if it is not known.
    """
    cases = (Case(spec=spec, architecture=architecture_of(spec.model)) for spec in specs)
    return list(dict.fromkeys(each.fault(case) for case in cases for each in broken(case, Where.SWEEP)))


def keys_refused_in_a_sweep(specs: Iterable[TrialSpec], architecture_of: ArchitectureLookup) -> tuple[str, ...]:
    """Return the keys that `faults_in_a_sweep` is about, each once: no simulation confirms their estimate."""
    return tuple(dict.fromkeys(fault.key for fault in faults_in_a_sweep(specs, architecture_of)))


def fault_of_closed_form(case: Case) -> Fault | None:
    """Return why there is no closed form for a trial; None if there is one."""
    return next((each.fault(case) for each in broken(case, Where.CLOSED_FORM)), None)


def refuse_without_card(spec: TrialSpec) -> None:
    """Raise the error of a command that asks whether a trial fits its card, if the trial has none.

    Raises:
        UsageError: It has none.
    """
    case = Case(spec=spec, architecture=None)
    if faults := [each.fault(case) for each in broken(case, Where.CARD)]:
        raise UsageError(faults)
