"""Short forms of what DeepSpeed changes: shards, master weights, buckets, and gathered weights."""

from profiler.analytical.formulas.parameters import lora_parameter_count, parameter_count
from profiler.analytical.formulas.trained import BFLOAT16_BYTES, lora_rank, trainable_parameter_count
from profiler.analytical.timeline.instants import InstantName
from profiler.domain.architecture import Architecture
from profiler.domain.count_text import count_text
from profiler.domain.memory import Category, Phase
from profiler.domain.trial import TrialSpec, Tuning

_OF_BACKWARD = {
    InstantName.REDUCTION: "a bucket and its copy",
    InstantName.BACKWARD_FIRST_LAYER: "a bucket and its copy",
    InstantName.BACKWARD_END: "a bucket and a copy of what is left",
}


def zero_forms(spec: TrialSpec, architecture: Architecture, name: InstantName, phase: Phase) -> dict[Category, str]:
    """Return the short form of each category that ZeRO changes."""
    trained = count_text(trainable_parameter_count(spec, architecture))
    adapters = lora_parameter_count(architecture, lora_rank(spec), spec.lora_target_modules or ())
    shard = "" if spec.zero_stage == 0 else f" / {spec.num_processes} GPUs"
    weights = shard if spec.zero_stage == 3 else ""
    return {
        Category.WEIGHTS: f"{count_text(parameter_count(architecture))} parameters x {BFLOAT16_BYTES} B{weights}",
        Category.ADAPTERS: f"{count_text(adapters)} x {BFLOAT16_BYTES} B{weights}",
        Category.OPTIMIZER_STATE: f"master weights and states of {trained}{shard}",
        Category.GRADIENTS: _gradients(spec, trained, name),
        Category.COMMUNICATION: _communication(spec, name, phase),
    }


def _gradients(spec: TrialSpec, trained: str, name: InstantName) -> str:
    if name is InstantName.STEP:
        return "in two types, while they are flattened"
    if (spec.zero_stage or 0) < 2:
        return f"{trained} x {BFLOAT16_BYTES} B, ..."
    return f"this GPU's part of {trained} x {BFLOAT16_BYTES} B, ..."


def _communication(spec: TrialSpec, name: InstantName, phase: Phase) -> str:
    if name is InstantName.SHARDING:
        return "while DeepSpeed takes the model over"
    found = _OF_BACKWARD.get(name, "a bucket")
    if spec.zero_stage != 3 or name in (InstantName.REWARD, InstantName.STEP, InstantName.BACKWARD_END):
        return found
    if phase is not Phase.ROLLOUT:
        return f"{found}, gathered layers"
    if name is InstantName.GATHERING:
        return f"{found}, the gathered model, this GPU's part of it"
    one_tensor = spec.use_vllm and spec.tuning is Tuning.FULL
    return f"{found}, the gathered embedding" if one_tensor else f"{found}, the gathered model"
