"""Rules between the keys of several GPUs, from accelerate and DeepSpeed."""

from collections.abc import Iterator

from profiler.config.rule import Rule
from profiler.domain.architecture import Architecture
from profiler.domain.errors import Fault
from profiler.domain.optimizers import Optimizer
from profiler.domain.trial import DistributedType, Logprobs, OffloadDevice, TrialSpec


def _takes_all_processes(spec: TrialSpec, _: Architecture | None) -> Iterator[Fault]:
    """Check that the way to train fits the number of GPUs."""
    alone = spec.distributed_type is DistributedType.NO
    if alone and spec.num_processes > 1:
        problem, hint = f"does not train on num_processes={spec.num_processes}", "Use multi_gpu, fsdp or deepspeed."
    elif not alone and spec.num_processes == 1:
        problem, hint = "needs several GPUs, and num_processes is 1", "Set num_processes to 2 or more."
    else:
        return
    yield Fault(key="distributed_type", found=spec.distributed_type.value, problem=problem, hint=hint)


def _is_a_version_of_fsdp(spec: TrialSpec, _: Architecture | None) -> Iterator[Fault]:
    if spec.fsdp_version not in (None, 1, 2):
        yield Fault(key="fsdp_version", found=str(spec.fsdp_version), problem="must be 1 or 2")


def _stage_offloads(spec: TrialSpec, _: Architecture | None) -> Iterator[Fault]:
    """Check that ZeRO shards what it offloads: `offload_optimizer` is of stages 1 to 3, `offload_param` of stage 3."""
    stage = spec.zero_stage
    for key, device, stages in (
        ("offload_optimizer_device", spec.offload_optimizer_device, (1, 2, 3)),
        ("offload_param_device", spec.offload_param_device, (3,)),
    ):
        if device is OffloadDevice.CPU and stage not in stages:
            needed = " or ".join(map(str, stages)) if len(stages) < 3 else "1, 2 or 3"
            problem = f"needs zero_stage={needed}, and it is {stage}"
            yield Fault(key=key, found="cpu", problem=problem, hint=f"Use zero_stage={stages[-1]}.")


def _offloaded_optimizer_is_adamw(spec: TrialSpec, _: Architecture | None) -> Iterator[Fault]:
    """Check `map_pytorch_optim_to_deepspeed` of accelerate 1.15: others would silently be another optimizer."""
    known = (Optimizer.ADAMW_TORCH, Optimizer.ADAMW_TORCH_FUSED)
    if spec.offload_optimizer_device is OffloadDevice.CPU and spec.optim not in known:
        yield Fault(
            key="optim",
            found=spec.optim.value,
            problem="with offload_optimizer_device=cpu accelerate runs DeepSpeed's AdamW on the CPU in its place",
            hint="Use optim=adamw_torch, which is the same optimizer.",
        )


def _backward_runs_once(spec: TrialSpec, _: Architecture | None) -> Iterator[Fault]:
    """Check that there is one backward per micro-batch, because accelerate's ends with DeepSpeed's step."""
    if spec.distributed_type is DistributedType.DEEPSPEED and spec.logprobs is Logprobs.MINIBATCH:
        yield Fault(
            key="logprobs",
            found="minibatch",
            problem="has a backward per row, and with distributed_type=deepspeed a backward ends with the step",
            hint="Use logprobs=fused, full or sliced.",
        )


def _checkpoints_once(spec: TrialSpec, _: Architecture | None) -> Iterator[Fault]:
    """Check that activations are not checkpointed twice, which accelerate refuses."""
    if spec.fsdp_activation_checkpointing and spec.gradient_checkpointing:
        yield Fault(
            key="fsdp_activation_checkpointing",
            found="true",
            problem="cannot be combined with gradient_checkpointing=true",
            hint="Set gradient_checkpointing=false.",
        )


SHARDING_RULES = (
    Rule(keys=("distributed_type", "num_processes"), check=_takes_all_processes),
    Rule(keys=("fsdp_version",), check=_is_a_version_of_fsdp),
    Rule(keys=("zero_stage", "offload_optimizer_device", "offload_param_device"), check=_stage_offloads),
    Rule(keys=("offload_optimizer_device", "optim"), check=_offloaded_optimizer_is_adamw),
    Rule(keys=("distributed_type", "logprobs"), check=_backward_runs_once),
    Rule(keys=("fsdp_activation_checkpointing", "gradient_checkpointing"), check=_checkpoints_once),
)
