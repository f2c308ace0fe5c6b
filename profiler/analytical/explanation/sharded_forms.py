"""Short forms of what FSDP changes: shards, whole gradients, and gathered weights."""

from profiler.analytical.formulas.parameters import lora_parameter_count, parameter_count
from profiler.analytical.formulas.shards import units
from profiler.analytical.formulas.trained import (
    BFLOAT16_BYTES,
    FLOAT32_BYTES,
    element_bytes,
    lora_rank,
    trainable_parameter_count,
    trains_everything,
)
from profiler.analytical.timeline.instants import InstantName
from profiler.domain.architecture import Architecture
from profiler.domain.count_text import count_text
from profiler.domain.memory import Category
from profiler.domain.trial import TrialSpec


def sharded_forms(spec: TrialSpec, architecture: Architecture, name: InstantName) -> dict[Category, str]:
    """Return the short form of each category that sharding changes."""
    gpus = spec.num_processes
    element = FLOAT32_BYTES if trains_everything(spec) else element_bytes(spec).weight
    adapters = count_text(lora_parameter_count(architecture, lora_rank(spec), spec.lora_target_modules or ()))
    states = spec.optim.traits.state_text.format(n=_trained(spec, architecture), e=FLOAT32_BYTES)
    every = count_text(parameter_count(architecture))
    return {
        Category.WEIGHTS: f"{every} parameters x {element} B / {gpus} GPUs",
        Category.REFERENCE: f"{every} x {element_bytes(spec).weight} B / {gpus} GPUs",
        Category.ADAPTERS: f"{adapters} x {FLOAT32_BYTES} B / {gpus} GPUs",
        Category.GRADIENTS: _gradients(spec, architecture, name),
        Category.OPTIMIZER_STATE: f"({states}) / {gpus} GPUs",
        Category.COMMUNICATION: _gathered(spec, architecture, name),
    }


def _trained(spec: TrialSpec, architecture: Architecture) -> str:
    return count_text(trainable_parameter_count(spec, architecture))


def _gradients(spec: TrialSpec, architecture: Architecture, name: InstantName) -> str:
    trained = _trained(spec, architecture)
    if name is InstantName.STEP:
        return f"{trained} x {FLOAT32_BYTES} B / {spec.num_processes} GPUs"
    if spec.gradient_accumulation_steps > 1:
        return f"{trained} x {BFLOAT16_BYTES} B, whole until the last one"
    return "shards, and whole ones of a layer or the root"


def _gathered(spec: TrialSpec, architecture: Architecture, name: InstantName) -> str:
    if name is InstantName.SHARDING:
        return "the whole model, until it is sharded"
    root = f"{count_text(units(spec, architecture).root)} x {BFLOAT16_BYTES} B of the root"
    if name in (InstantName.SCORE_LAYER, InstantName.SCORE_HEAD) and spec.keeps_reference_model:
        return "the gathered reference, twice, and the root"
    at_the_end = name in (InstantName.BACKWARD_FIRST_LAYER, InstantName.BACKWARD_END)
    if not spec.fsdp_reshard_after_forward and not at_the_end:
        return f"gathered: {root}, all layers"
    return f"gathered: {root}" + ("" if name is InstantName.REWARD else ", 2 layers")
