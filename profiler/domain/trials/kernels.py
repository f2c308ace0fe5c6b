"""Kernels that a trial needs and old cards lack, and programs that have others, of whose memory there are bounds."""

from dataclasses import dataclass

from profiler.domain.cards.gpu import Chip
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import Attention, Dtype, TrialSpec, Tuning


@dataclass(frozen=True, kw_only=True)
class MissingKernel:
    """A kernel that a card does not have."""

    name: str
    """What does not run."""
    hint: str
    """What to change so that the trial runs on the card."""


FLASH_ATTENTION = MissingKernel(name="FlashAttention-2", hint="Use attn_implementation=sdpa.")
FLASH_OF_FLOAT32 = MissingKernel(
    name="FlashAttention-2 in float32, in which adapters generate,",
    hint="Use dtype=bfloat16, or attn_implementation=sdpa.",
)
"""transformers casts for it under autocast, which peft's `generate` is not. No trial reaches training, on any card."""

WIDEST_FLASH_HEAD = 256
"""The widest heads of flash attention: `check_head_dim_size_flash` in torch's `sdp_utils.cpp`, and `mha_fwd` in
flash-attn's `flash_api.cpp`."""

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
    if gives_float32_to_flash(spec):
        return FLASH_OF_FLOAT32
    if chip.multiplies_bfloat16_into_float32 or not spec.logprobs.has_fused_head:
        return None
    return FUSED_HEAD if spec.trains_in_bfloat16 else None


def gives_float32_to_flash(spec: TrialSpec) -> bool:
    """Return whether a model with adapters, so without autocast, generates by FlashAttention-2 in float32."""
    is_wide = spec.dtype is Dtype.FLOAT32 and spec.tuning is not Tuning.FULL
    generates = spec.recipe.facts.has_rollout and not spec.use_vllm
    return is_wide and generates and spec.attn_implementation is Attention.FLASH_ATTENTION_2


@dataclass(frozen=True, kw_only=True)
class OtherKernels:
    """A program that trains by trl with kernels of its own: figures of trl's trainer are bounds of its memory."""

    program: str
    """Its name and the version that was read."""
    first_trl: str
    """The first release of trl that it runs on."""
    last_trl: str
    recipes: tuple[Recipe, ...]
    """The trainers whose patches were read, so that there are bounds."""
    has_mixed_weights: bool = False
    """Whether linear layers of 4-bit weights may be in 16 bits, as in checkpoints that the program chooses itself."""
    counts_everything: bool = True
    """Whether all that the job states is counted; else a bound from above does not hold."""

    def problem_of(self, recipe: Recipe) -> str:
        """Return why a trainer has no bounds; empty if it has."""
        if recipe in self.recipes:
            return ""
        return f"is a trainer whose changes by {self.program} have no bound here; one of {', '.join(self.recipes)} has"


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Between which two sizes allocated memory lies at the peak, where a program has kernels of its own."""

    kernels: OtherKernels
    least_bytes: int
    most_bytes: int
