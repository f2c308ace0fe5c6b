"""Constraints of several GPUs, from accelerate and DeepSpeed."""

from functools import partial

from profiler.constraints.constraint import Constraint, Where, above, other_than
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.trial import ZERO_OF_WEIGHTS, DistributedType, Logprobs, OffloadDevice

_everywhere = partial(Constraint, Where.EVERYWHERE)

OF_SEVERAL_GPUS = (
    _everywhere(
        {"distributed_type": DistributedType.NO, "num_processes": above(1)},
        "does not train on num_processes={spec.num_processes}",
        "Use multi_gpu, fsdp or deepspeed.",
    ),
    _everywhere(
        {"distributed_type": other_than(DistributedType.NO), "num_processes": 1},
        "needs several GPUs, and num_processes is 1",
        "Set num_processes to 2 or more.",
    ),
    _everywhere({"fsdp_version": other_than(None, 1, 2)}, "must be 1 or 2"),
    # ZeRO offloads what it shards.
    _everywhere(
        {"offload_optimizer_device": OffloadDevice.CPU, "zero_stage": 0},
        "needs zero_stage=1, 2 or 3, and it is {spec.zero_stage}",
        "Use zero_stage=3.",
    ),
    _everywhere(
        {"offload_param_device": OffloadDevice.CPU, "zero_stage": other_than(ZERO_OF_WEIGHTS)},
        "needs zero_stage=3, and it is {spec.zero_stage}",
        "Use zero_stage=3.",
    ),
    # `map_pytorch_optim_to_deepspeed` of accelerate 1.15: others would silently be another optimizer.
    _everywhere(
        {
            "optim": other_than(Optimizer.ADAMW_TORCH, Optimizer.ADAMW_TORCH_FUSED),
            "offload_optimizer_device": OffloadDevice.CPU,
        },
        "with offload_optimizer_device=cpu accelerate runs DeepSpeed's AdamW on the CPU in its place",
        "Use optim=adamw_torch, which is the same optimizer.",
    ),
    # There is one backward per micro-batch, because accelerate's ends with DeepSpeed's step.
    _everywhere(
        {"logprobs": Logprobs.MINIBATCH, "distributed_type": DistributedType.DEEPSPEED},
        "has a backward per row, and with distributed_type=deepspeed a backward ends with the step",
        "Use logprobs=fused, full or sliced.",
    ),
    # accelerate refuses to checkpoint activations twice.
    _everywhere(
        {"fsdp_activation_checkpointing": True, "gradient_checkpointing": True},
        "cannot be combined with gradient_checkpointing=true",
        "Set gradient_checkpointing=false.",
    ),
)
