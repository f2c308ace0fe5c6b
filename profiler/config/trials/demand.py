"""An order of trials by memory: which of them need at most as much as others."""

from collections.abc import Callable, Hashable, Mapping

from profiler.domain.architectures.architecture import Architecture
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.trials.keys import Key, MemoryOrder
from profiler.domain.trials.optimizers import OptimizerTraits, State
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import (
    RAGGED_ROWS,
    TRIAL_KEYS,
    Attention,
    Backend,
    DistributedType,
    Lengths,
    Logprobs,
    TrialSpec,
    completion_lengths,
)

_COMPARED = tuple(
    sorted((key for key in TRIAL_KEYS if key.memory is not MemoryOrder.NO_EFFECT), key=lambda key: key.memory.value)
)

_FEW_LAYERS = 4
"""With fewer layers checkpointing can need more: backward computes one layer again while all inputs are kept."""


_TOKENS_OF_A_RANK = 4
"""With fewer tokens of a micro-batch per rank of an adapter, checkpointing can need more.

Backward of the first layer has the gradients of all adapters, and with checkpointing one layer that was computed again.
Without checkpointing more is needed only where the activations of the other layers outweigh these gradients. Per token
and layer they have at least 2 x (6 H + 3 I) bytes, and the adapters of all linear layers 4 x rank x (9 H + 3 I). Their
ratio is at most 3 x rank, or 4 x rank where a quarter of the layers is left out. A simulated case, qwen2.5-0.5b with
LoRA of rank 64 and 16 tokens: 1,646,797,824 B without checkpointing, 1,647,087,104 B with it."""


def needs_at_most(smaller: TrialSpec, larger: TrialSpec, *, architecture_of: Callable[[str], Architecture]) -> bool:
    """Return whether `smaller` needs at most the memory of `larger`, on a card with at least as much of it.

    True of a trial and itself. It holds for the sum of tensors in each phase. The fragments of the allocator can differ
    by little; `prune=false` exists for that.

    Args:
        smaller: The trial that, if it runs out of memory, implies that the other does.
        larger: The other trial.
        architecture_of: Returns the shape of a model by its name.
    """
    return (
        all(_in_order(key, smaller, larger) for key in _COMPARED)
        and _events(smaller) <= _events(larger)
        and _has_the_same_padding(smaller, larger)
        and _has_the_same_engine(smaller, larger)
        and _has_the_same_parts(smaller, larger)
        and _has_comparable_states(smaller, larger)
        and _is_no_larger_model(smaller, larger, architecture_of)
    )


def memory_rank(spec: TrialSpec, *, architecture_of: Callable[[str], Architecture]) -> tuple[float, ...]:
    """Return numbers that order trials so that `needs_at_most(a, b)` implies a rank of `a` that is not larger.

    Equal ranks then mean that each needs at most the other's memory, or that the two cannot be compared. Each number
    follows one condition of `needs_at_most`, so sorting by rank takes no comparison of pairs.
    """
    grows = (getattr(spec, key.name) for key in _COMPARED if key.memory is MemoryOrder.GROWS)
    return (
        sum(_sizes(architecture_of(spec.model), spec)),
        sum(value for value in grows if value is not None),
        not spec.gradient_checkpointing,
        spec.beta != 0,
        -_card_bytes(spec) if spec.backend is Backend.CUDA else 0.0,
        len(_events(spec)),
    )


def comparable_group(spec: TrialSpec) -> Hashable:
    """Return a key that is equal for any two trials of which one can need at most the memory of the other."""
    return tuple(getattr(spec, key.name) for key in _COMPARED if key.memory is MemoryOrder.SAME)


def _has_the_same_engine(smaller: TrialSpec, larger: TrialSpec) -> bool:
    """Return whether vLLM takes the same in both trials, or runs in neither.

    Between rollouts it has its part of the card without the activations of a forward. These grow with the model and
    with the sequences, so a larger trial has the smaller engine.
    """
    if not smaller.use_vllm:
        return True
    return (smaller.model, smaller.generation_batch_size) == (larger.model, larger.generation_batch_size)


def _has_the_same_parts(smaller: TrialSpec, larger: TrialSpec) -> bool:
    """Return whether both trials split their rows by tokens alike, or neither does.

    Longer rows can make smaller micro-batches: of rows of 60 tokens one fits into 100 tokens, of rows of 50 two do.
    """
    return not smaller.use_dynamic_bsz or _rows_and_lengths(smaller) == _rows_and_lengths(larger)


def _rows_and_lengths(spec: TrialSpec) -> tuple[int, ...]:
    rows = spec.per_device_train_batch_size * spec.gradient_accumulation_steps
    return rows, spec.steps_per_generation, spec.max_prompt_length, spec.max_completion_length


def grows(key: Key, spec: TrialSpec) -> bool:
    """Return whether a larger number of `key` never needs less.

    A prompt that is a part of a row takes its tokens from the completion, which is scored: it can need less.
    """
    return key.memory is MemoryOrder.GROWS and not (key.name == "max_prompt_length" and spec.max_length is not None)


def _in_order(key: Key, smaller: TrialSpec, larger: TrialSpec) -> bool:
    one, other = getattr(smaller, key.name), getattr(larger, key.name)
    if key.memory is MemoryOrder.ORDERED:
        return _ORDERS[key.name](smaller, larger)
    if not grows(key, smaller) or one is None or other is None:
        return bool(one == other)
    return bool(one <= other)


def _checkpoints_no_less(smaller: TrialSpec, larger: TrialSpec) -> bool:
    return smaller.gradient_checkpointing or not larger.gradient_checkpointing


def _has_no_more_kl(smaller: TrialSpec, larger: TrialSpec) -> bool:
    return smaller.beta == 0 or larger.beta != 0


def _has_no_smaller_card(smaller: TrialSpec, larger: TrialSpec) -> bool:
    """Compare what a real card is capped to; the whole card is more than any cap.

    Trials on emulated and simulated cards are compared only on the same card, because the card decides which kernels
    run, and so are trials with vLLM, which takes a part of the card.
    """
    if smaller.backend is not Backend.CUDA or smaller.use_vllm:
        return smaller.gpu == larger.gpu
    return _card_bytes(smaller) >= _card_bytes(larger)


def _card_bytes(spec: TrialSpec) -> float:
    return float("inf") if spec.gpu is None else KNOWN_GPUS[spec.gpu].memory_bytes


def _any_model(smaller: TrialSpec, larger: TrialSpec) -> bool:  # noqa: ARG001  of the signature of an order
    """Leave the order of models to `_is_no_larger_model`, which needs their shapes."""
    return True


_ORDERS: Mapping[str, Callable[[TrialSpec, TrialSpec], bool]] = {
    "gpu": _has_no_smaller_card,
    "model": _any_model,
    "gradient_checkpointing": _checkpoints_no_less,
    "beta": _has_no_more_kl,
}
"""The orders of the keys that are declared as `MemoryOrder.ORDERED`."""


def _events(spec: TrialSpec) -> frozenset[str]:
    """Return what happens only for some ratios of accumulation and generation, and adds memory where it happens.

    Source: trl's `GRPOTrainer._prepare_inputs` and `_generate_and_score_completions`, for one iteration per generation.
    """
    accumulation, generation = spec.gradient_accumulation_steps, spec.steps_per_generation
    reduces = spec.distributed_type in (DistributedType.FSDP, DistributedType.DEEPSPEED) and accumulation == 1
    in_any_recipe = frozenset({"the only backward of a step reduces the gradients"} if reduces else ())
    if not spec.recipe.facts.has_rollout:
        return in_any_recipe
    micro_batches = spec.steps * accumulation
    first_after_a_step = generation * -(-accumulation // generation)
    happens = {
        "the old policy is scored": spec.recipe is Recipe.RLOO or accumulation % generation != 0,
        "a second rollout": generation < micro_batches,
        "a rollout after an optimizer step": first_after_a_step < micro_batches,
        "a rollout between two micro-batches of one optimizer step": (
            generation % accumulation != 0 and generation < micro_batches
        ),
        "a backward of the critic after its optimizer's step": (
            spec.critic and (spec.steps > 1 or generation > accumulation)
        ),
    }
    return in_any_recipe | {event for event, is_there in happens.items() if is_there}


def _has_the_same_padding(smaller: TrialSpec, larger: TrialSpec) -> bool:
    """Compare the padding of ragged rows: a larger batch can have a smaller part of long rows.

    trl shuffles the rows of a generation. The mix of lengths is the same in any number of whole patterns.
    """
    if smaller.lengths is not Lengths.RAGGED:
        return True
    one, other = _rows_of_a_mix(smaller), _rows_of_a_mix(larger)
    same_mix = one == other or (one % RAGGED_ROWS == 0 and other % RAGGED_ROWS == 0)
    return same_mix and _masks(smaller) == _masks(larger)


def _rows_of_a_mix(spec: TrialSpec) -> int:
    """Return the rows over which the pattern of ragged lengths runs: those padded to one length."""
    return spec.generation_batch_size if spec.recipe.facts.has_rollout else spec.training_rows


def _masks(spec: TrialSpec) -> tuple[bool, bool]:
    """Return whether rows are padded, and whether a row is alone, and so without a mask, where that can need more.

    Without autocast, torch's SDPA may have a kernel with a mask and none without one (`can_use_flash_attention` and
    `can_use_mem_efficient_attention` in `sdp_utils.cpp`); all cards have the same kernels for bfloat16 either way.
    """
    lengths = completion_lengths(
        lengths=spec.lengths,
        rows=min(_rows_of_a_mix(spec), RAGGED_ROWS),
        max_completion_length=spec.longest,
    )
    is_padded = min(lengths) < max(lengths)
    chooses_by_mask = spec.attn_implementation is Attention.SDPA and not spec.trains_in_bfloat16
    passes_mask = is_padded and spec.logprobs is not Logprobs.FULL
    return is_padded, passes_mask and chooses_by_mask and spec.per_device_train_batch_size == 1


def _has_comparable_states(smaller: TrialSpec, larger: TrialSpec) -> bool:
    traits = smaller.optim.traits
    if traits.is_paged and traits.state is State.FLOAT32 and smaller.model != larger.model:
        return False  # a little larger model can have a third of the bytes: all its states are paged
    one, other = smaller.lora_rank, larger.lora_rank
    return one is None or other is None or one == other or other >= _enough_ranks(traits) * one


def _enough_ranks(traits: OptimizerTraits) -> int:
    """Return how many times larger a rank has to be that always needs more.

    The state of a tensor shrinks where the tensor reaches a certain size: smaller tensors are kept in 32 bits, and on
    the GPU where larger ones are paged (bitsandbytes, `min_8bit_size` and `get_state_buffer`). At worst two bytes of
    weights and four of each of k states per parameter become two and one of each, (2 + 4k) / (2 + k) < 3 for the three
    of AdEMAMix; or two and none: in 8 bits (2 + k) / 2 < 3, in float32 (2 + 4k) / 2 = 1 + 2k. By hand, AdamW: 5.
    """
    if traits.state is State.EIGHT_BIT:
        return 3
    return 1 + 2 * sum(traits.values) if traits.state is State.FLOAT32 and traits.is_paged else 1


def _is_no_larger_model(smaller: TrialSpec, larger: TrialSpec, architecture_of: Callable[[str], Architecture]) -> bool:
    """Compare the sizes of all tensors. 3B has more layers than 7B, but smaller ones: what counts are products."""
    checkpointing_differs = smaller.gradient_checkpointing != larger.gradient_checkpointing
    if smaller.model == larger.model and not checkpointing_differs:
        return True
    one, other = architecture_of(smaller.model), architecture_of(larger.model)
    if checkpointing_differs and max(one.num_hidden_layers, other.num_hidden_layers) < _FEW_LAYERS:
        return False
    if checkpointing_differs and _tokens(smaller) < _TOKENS_OF_A_RANK * (smaller.lora_rank or 0):
        return False
    if checkpointing_differs and smaller.distributed_type is DistributedType.FSDP and _tokens(smaller) < _gathered(one):
        return False
    sizes = zip(_sizes(one, smaller), _sizes(other, larger), strict=True)
    return _family(one) == _family(other) and all(size <= larger_size for size, larger_size in sizes)


def _gathered(model: Architecture) -> int:
    """Return the tokens whose activations outweigh an embedding that FSDP gathers, next to a layer, for its backward.

    With checkpointing the embedding has a backward also where only adapters are trained. Without it the layers have at
    least 2 x (6 H + 3 I) bytes per token. By hand, deepseek-llm-7b: 102,400 x 4,096 / (29 x (24,576 + 33,024)), 252; an
    estimate with 4 tokens on 2 GPUs: 9,268,334,379 B without checkpointing and 9,611,604,248 B with it.
    """
    layers = max(model.num_hidden_layers - 1, 1)
    per_token = layers * (6 * model.hidden_size + 3 * model.intermediate_size)
    return -(-model.vocab_size * model.hidden_size // per_token)


def _tokens(spec: TrialSpec) -> int:
    """Return the tokens of a micro-batch, padding included."""
    prompt = spec.max_prompt_length if spec.recipe.facts.has_prompts else 0
    return spec.training_rows * (prompt + spec.longest)


def _family(shape: Architecture) -> tuple[object, ...]:
    shares_keys = shape.num_key_value_heads < shape.num_attention_heads
    kind = shape.model_type, shape.qkv_bias, shape.qk_norm, shares_keys, shape.num_experts > 1
    return *kind, shape.idle, shape.layer_inputs


_LINEAR_FACTORS = 10


def _linear_sizes(shape: Architecture) -> tuple[int, ...]:
    """Return factors of the sizes of the tensors of linear attention, of a layer and of all; 0 for other models."""
    first = next((kind for kind in shape.first_layers if kind.linear is not None), None)
    if first is None or (linear := first.linear) is None:
        return (0,) * _LINEAR_FACTORS
    keys = linear.num_value_heads * linear.key_head_dim
    sizes = (linear.conv_width, linear.value_width, keys, keys * linear.value_head_dim, linear.conv_kernel_dim)
    return (*sizes, *(first.num_hidden_layers * size for size in sizes))


def _sizes(shape: Architecture, spec: TrialSpec) -> tuple[int, ...]:
    """Return factors of the sizes of all tensors of a model."""
    latent = shape.latent
    head_dim = shape.head_dim if latent is None else latent.head_dim + latent.v_head_dim
    ranks = (latent.q_lora_rank or 0, latent.kv_lora_rank) if latent else (0, 0)
    attention = shape.num_attention_heads * head_dim
    cached = shape.num_key_value_heads * shape.head_dim
    layers = shape.num_hidden_layers
    # Scores exist for every head, but FlashAttention-2 never holds them.
    heads = 0 if spec.attn_implementation is Attention.FLASH_ATTENTION_2 else shape.num_attention_heads
    return (
        *_linear_sizes(shape),
        *ranks,
        *(shape.num_hidden_layers * rank for rank in ranks),
        shape.vocab_size,
        shape.hidden_size,
        shape.intermediate_size,
        attention,
        cached,
        heads,
        layers * shape.hidden_size,
        layers * shape.intermediate_size,
        layers * attention,
        layers * cached,
        layers * heads,
        layers * shape.hidden_size * shape.intermediate_size * shape.num_experts,
        layers * shape.hidden_size * shape.expert_width * shape.num_experts,
        shape.expert_width * shape.experts_per_token,
        shape.hidden_size * shape.experts_per_token,
        shape.shared_expert_width,
        layers * shape.hidden_size * attention,
        shape.vocab_size * shape.hidden_size * (1 if shape.tie_word_embeddings else 2),
    )
