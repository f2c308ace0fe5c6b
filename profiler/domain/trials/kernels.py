"""Kernels that a trial needs and that old cards do not have."""

from dataclasses import dataclass

from profiler.domain.cards.gpu import Chip
from profiler.domain.trials.trial import Attention, TrialSpec


@dataclass(frozen=True, kw_only=True)
class MissingKernel:
    """A kernel that a card does not have."""

    name: str
    """What does not run."""
    hint: str
    """What to change so that the trial runs on the card."""


FLASH_ATTENTION = MissingKernel(name="FlashAttention-2", hint="Use attn_implementation=sdpa.")
FUSED_HEAD = MissingKernel(
    name="trl's fused LM head in bfloat16",
    hint="Use fp16=true (tuning=full needs dtype=float32 then), or with recipe=grpo logprobs=full.",
)
"""Its backward adds products of bfloat16 matrices to a float32 matrix."""

DIVERGENCE = MissingKernel(
    name="trl's divergence from the teacher in bfloat16",
    hint="Load the models in float16 or float32, with bf16=False.",
)
"""Its tiles of logits are products of bfloat16 matrices in float32."""


def missing_kernel(spec: TrialSpec, chip: Chip) -> MissingKernel | None:
    """Return the kernel that `spec` needs and a card with `chip` does not have, or None."""
    if spec.attn_implementation is Attention.FLASH_ATTENTION_2 and not chip.has_flash_attention:
        return FLASH_ATTENTION
    if chip.multiplies_bfloat16_into_float32 or not spec.logprobs.has_fused_head:
        return None
    return FUSED_HEAD if spec.trains_in_bfloat16 else None
