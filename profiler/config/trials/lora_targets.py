"""The modules that LoRA adapts: their order, and which names a model has."""

from collections.abc import Iterator, Sequence

from profiler.config.models.architecture import FUSED_PROJECTION_NAMES, MODEL_TYPES, OTHER_TARGETS, PROJECTION_NAMES
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.architectures.families import family_of
from profiler.domain.errors import Fault, nearest
from profiler.domain.trials.trial import ALL_LINEAR, TrialSpec


def in_layer_order(names: Sequence[str]) -> tuple[str, ...]:
    """Return module names, each once, in the order of a layer and then by name: for peft they are a set."""
    known = (*PROJECTION_NAMES, *FUSED_PROJECTION_NAMES, *OTHER_TARGETS)
    unique = {name.strip() for name in names}
    return tuple(sorted(unique, key=lambda name: (known.index(name) if name in known else len(known), name)))


def unknown_targets(spec: TrialSpec, architecture: Architecture | None) -> Iterator[Fault]:
    """Yield a fault per module of `lora_target_modules` that the model has not."""
    targets = spec.lora_target_modules
    if targets is None or targets == (ALL_LINEAR,) or architecture is None:
        return
    if architecture.model_type not in MODEL_TYPES or architecture.num_experts > 1:
        # The names of its modules are unknown, or its experts are no linear layers; peft checks them.
        return
    is_fused = family_of(architecture.model_type).layers.has_fused_projections
    layers = FUSED_PROJECTION_NAMES if is_fused else PROJECTION_NAMES
    known = (*layers, *_of_tower(architecture), *OTHER_TARGETS)
    for name in targets:
        if name not in known:
            yield Fault(
                key="lora_target_modules",
                found=name,
                problem=f"must be {ALL_LINEAR} alone or names among {', '.join(known)}",
                hint=nearest(name, [*known, ALL_LINEAR]),
            )


def _of_tower(architecture: Architecture) -> tuple[str, ...]:
    """Return the names of linear layers that only the vision tower has; peft takes them by the end of their paths."""
    if architecture.vision is None:
        return ()
    return ("qkv", "attn.proj", *(name for name in architecture.vision.mlp_names if name not in PROJECTION_NAMES))
