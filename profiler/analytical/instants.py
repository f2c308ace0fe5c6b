"""The moments of a trial at which memory can be at its highest, each as bytes by category.

An instant is what is always there, plus what that moment adds. The peak is the largest instant: memory that never
exists at the same time is never added up.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from profiler.analytical.batch import Batch, micro_batch, one_row
from profiler.analytical.decoder_layer import layer_without_gradient_bytes
from profiler.analytical.head import HeadBytes, score_scratch
from profiler.analytical.optimizer_state import optimizer_scratch_bytes, optimizer_state_bytes
from profiler.analytical.rollout import growth_copy_bytes, kv_cache_bytes, kv_element_bytes, sampling_bytes
from profiler.analytical.trained import (
    FLOAT32_BYTES,
    INT64_BYTES,
    gradient_bytes,
    trained_element_bytes,
    trained_tensors,
    trains_everything,
)
from profiler.analytical.weights import adapter_bytes, autocast_cache_bytes, reference_bytes, weights_bytes
from profiler.domain.architecture import Architecture
from profiler.domain.gpu import KNOWN_GPUS
from profiler.domain.memory import Category, Phase
from profiler.domain.trial import Logprobs, TrialSpec
from profiler.domain.units import MIB

Bytes = Mapping[Category, int]

_HOPPER = (9, 0)


@dataclass(frozen=True, kw_only=True)
class Instant:
    """One moment."""

    phase: Phase
    sizes: Bytes

    @property
    def total_bytes(self) -> int:
        """All categories together."""
        return sum(self.sizes.values())


def added(*parts: Bytes) -> Bytes:
    """Categories summed over `parts`."""
    return {category: sum(part.get(category, 0) for part in parts) for category in Category}


def head_categories(head: HeadBytes) -> Bytes:
    """The head's bytes in the project's categories."""
    return {
        Category.LOGITS: head.logits,
        Category.ACTIVATIONS: head.activations,
        Category.GRADIENTS: head.gradients,
    }


def cublas_workspace_bytes(spec: TrialSpec) -> int:
    """One cuBLAS workspace each for the thread that runs forward and the one that runs backward.

    32 MiB on Hopper, 8,519,680 B elsewhere; where the card is not named, Hopper is assumed.

    Source: `getChosenWorkspaceSize` in `aten/src/ATen/cuda/CublasHandlePool.cpp`, torch up to 2.13.
    """
    card = KNOWN_GPUS.get(spec.gpu or "")
    capability = card.compute_capability if card else _HOPPER
    return 2 * (32 * MIB if capability == _HOPPER else 8_519_680)


def input_bytes(spec: TrialSpec) -> int:
    """Ids and masks of a generation batch as int64, twice (whole, and shuffled or joined), and float32 scores.

    By hand, 16 rows of 256 + 786 without reference: 16 x 1,042 x 8 x 4 = 533,504 B.
    """
    tokens = spec.generation_batch_size * (spec.max_prompt_length + spec.max_completion_length)
    scores = spec.generation_batch_size * spec.max_completion_length * FLOAT32_BYTES if spec.beta else 0
    return 4 * tokens * INT64_BYTES + scores


def standing(spec: TrialSpec, architecture: Architecture) -> Bytes:
    """What is there at every instant once the first optimizer step is done; a single step never sees its own states."""
    state = optimizer_state_bytes(spec.optim, trained_tensors(spec, architecture), trained_element_bytes(spec))
    return {
        Category.WEIGHTS: weights_bytes(spec, architecture),
        Category.REFERENCE: reference_bytes(spec, architecture),
        Category.ADAPTERS: adapter_bytes(spec, architecture),
        Category.OPTIMIZER_STATE: state if spec.steps > 1 else 0,
        Category.INPUTS: input_bytes(spec),
        Category.WORKSPACE: cublas_workspace_bytes(spec),
    }


def rollout_instants(spec: TrialSpec, architecture: Architecture) -> tuple[Instant, ...]:
    """Prefill, the last growth of the cache, and the last draw."""
    rows, element = spec.generation_batch_size, kv_element_bytes(spec)
    tokens = spec.max_prompt_length + spec.max_completion_length - 1
    # Generating in the middle of an accumulation finds gradients there.
    unfinished = spec.steps_per_generation < spec.gradient_accumulation_steps
    held = added(
        standing(spec, architecture),
        {Category.GRADIENTS: gradient_bytes(spec, architecture) if unfinished else 0},
        # With adapters `generate` goes around the forward that autocast wraps.
        {Category.ACTIVATIONS: autocast_cache_bytes(spec, architecture) if trains_everything(spec) else 0},
    )
    full = kv_cache_bytes(architecture, sequences=rows, tokens=tokens, element=element)
    growth = growth_copy_bytes(architecture, sequences=rows, tokens=tokens, element=element)
    prompts = Batch(
        rows=rows, prompt_tokens=spec.max_prompt_length, completion_tokens=0, scored_tokens=0, has_mask=False
    )
    moments: tuple[Bytes, ...] = (
        {
            Category.KV_CACHE: kv_cache_bytes(
                architecture, sequences=rows, tokens=spec.max_prompt_length, element=element
            ),
            Category.ACTIVATIONS: layer_without_gradient_bytes(
                spec, architecture, prompts, adapted=True, autocast=False
            ),
        },
        {Category.KV_CACHE: full + growth},
        {Category.KV_CACHE: full, Category.LOGITS: sampling_bytes(spec, architecture)},
    )
    return tuple(Instant(phase=Phase.ROLLOUT, sizes=added(held, moment)) for moment in moments)


def score_instants(spec: TrialSpec, architecture: Architecture) -> tuple[Instant, ...]:
    """Log-probabilities without gradient: of the reference, or of the policy when trl keeps the old ones.

    trl keeps them when generations and optimizer steps are not aligned.
    """
    old_policy = spec.gradient_accumulation_steps % spec.steps_per_generation != 0
    if spec.beta == 0.0 and not old_policy:
        return ()
    batch = micro_batch(spec)
    if spec.logprobs is Logprobs.SLICED:
        batch = one_row(batch)
    layer = layer_without_gradient_bytes(spec, architecture, batch, adapted=old_policy, autocast=spec.bf16)
    unfinished = spec.steps_per_generation < spec.gradient_accumulation_steps
    held = added(
        standing(spec, architecture),
        {Category.GRADIENTS: gradient_bytes(spec, architecture) if unfinished else 0},
    )
    return (
        Instant(phase=Phase.SCORE, sizes=added(held, {Category.ACTIVATIONS: layer})),
        Instant(phase=Phase.SCORE, sizes=added(held, head_categories(score_scratch(spec, architecture, batch)))),
    )


def optimizer_instant(spec: TrialSpec, architecture: Architecture) -> Instant:
    """`step()` at its highest: gradients, states and scratch together."""
    tensors, element = trained_tensors(spec, architecture), trained_element_bytes(spec)
    held = dict(standing(spec, architecture))
    held[Category.OPTIMIZER_STATE] = optimizer_state_bytes(spec.optim, tensors, element)
    step = {
        Category.GRADIENTS: gradient_bytes(spec, architecture),
        Category.WORKSPACE: optimizer_scratch_bytes(spec.optim, tensors, element),
    }
    return Instant(phase=Phase.OPTIMIZER, sizes=added(held, step))
