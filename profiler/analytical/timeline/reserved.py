"""Reserved memory from allocated: what the caching allocator holds because freed blocks serve only what they fit.

The model. Tensors of one category come in the same few sizes, step after step, so a category keeps the segments that it
once needed: the allocator frees none, and best fit finds a freed block of the same size again. Tensors of another
category have other sizes and, asked for while those blocks are in use or cut up, get segments of their own. So reserved
is the sum over categories of the most that each has at any instant, while allocated is the most that all have at one.

Never less than the peak of allocated memory. With `expandable_segments` pages move freely inside one segment a pool, so
nothing is stranded and reserved is allocated. Rounding to segments (2 MiB, 20 MiB) is left out: at most 20 MiB for each
kind of tensor.

Source of the rules: `c10/cuda/CUDACachingAllocator.cpp`: `get_free_block` (best fit, same pool), `should_split` (a
remainder above 1 MiB), `free_block` (merges within a segment only). Nothing is fitted. Not for a card that is nearly
full: there the allocator gives cached segments back, and reserved ends at what the card has.

A KV cache that grows by concatenation is the exception: it has a new size at every token, and leaves generations of
segments behind (`kv_cache_fragmentation`). What is reserved at the end of a rollout is what stands, and those; and
where the hidden states of a micro-batch are larger than the largest of them, training finds no room in them either.

Error against the simulation, over the 500 trials of `results/reference/accuracy/`: median 3.9 %, 95th percentile 31 %;
-12 % at the 5th and +24 % at the 95th percentile. It is too low where a step's tensors of one category have many sizes
(eager attention), too high where one category's blocks do fit another (logits of all positions; a cache's segments,
training's smaller tensors).
"""

from collections.abc import Sequence

from profiler.analytical.formulas.batch import micro_batch
from profiler.analytical.formulas.decoder_layer import layer_input_bytes
from profiler.analytical.formulas.eager_attention import repeated_cache_bytes
from profiler.analytical.formulas.head import full_logits_classes_bytes
from profiler.analytical.formulas.quantities import Count, Truth, both, holds, larger, where
from profiler.analytical.formulas.rollout import growth_copy_bytes, kv_element_bytes
from profiler.analytical.formulas.rounding import block_of
from profiler.analytical.formulas.trained import element_bytes
from profiler.analytical.formulas.trial_keys import DecoderShape, TrialKeys
from profiler.analytical.timeline.instants import Instant, Moment, total
from profiler.analytical.timeline.kv_cache_fragmentation import Growth, growth_segments_bytes, own_segments_bytes
from profiler.domain.memory import Category, Phase
from profiler.domain.trial import Logprobs, Rollout, Tuning

_EXPANDABLE = "expandable_segments:True"


def peak_reserved_bytes(spec: TrialKeys, architecture: DecoderShape, moments: Sequence[Instant]) -> Count:
    """The peak of reserved memory of a trial with the instants `moments`, on a card with room for it.

    A trial of a single step has no optimizer state until its backward is over, and the states then come where
    backward's memory was: they do not count beside it.

    By hand: two instants of (weights 4, activations 3, logits 0) and (4, 1, 2) allocate 7 and reserve 4 + 3 + 2 = 9.
    """
    peak: Count = 0
    kept: dict[Category, Count] = {}
    for instant in moments:
        peak = larger(peak, instant.total_bytes)
        if instant.phase is Phase.LOAD:
            continue
        for category, size in instant.sizes.items():
            kept[category] = larger(kept.get(category, 0), where(instant.happens, size, 0))
    if spec.logprobs is Logprobs.FULL:
        classes = full_logits_classes_bytes(spec, architecture, micro_batch(spec))
        kept[Category.LOGITS] = larger(kept[Category.LOGITS], classes)
    kept[Category.OPTIMIZER_STATE] = where(spec.steps > 1, kept[Category.OPTIMIZER_STATE], 0)
    growth = _cache_growth(spec, architecture, moments)
    grown: Count = 0
    if growth is not None:
        own = where(_strands(spec, architecture), own_segments_bytes(growth), 0)
        is_of_no_use = layer_input_bytes(spec, architecture, micro_batch(spec)) > growth.last
        kept[Category.KV_CACHE] = larger(kept[Category.KV_CACHE], where(is_of_no_use, own, 0))
        grown = where(_strands(spec, architecture), _standing(moments) + growth_segments_bytes(growth), 0)
    envelope: Count = 0
    for size in kept.values():
        envelope = envelope + size
    envelope = larger(envelope, grown)
    is_expandable = holds(spec.alloc_conf, lambda settings: _EXPANDABLE in settings)
    return where(is_expandable, peak, larger(peak, envelope))


def _strands(spec: TrialKeys, architecture: DecoderShape) -> Truth:
    """Whether the growing cache has segments of its own at all.

    Not with `rollout=synthetic`, which fills the cache at once. Not where each step repeats keys and values for all
    query heads: those larger blocks come and go between two tokens, and the cache finds its room in them.
    """
    tokens = spec.max_prompt_length + spec.max_completion_length - 1
    grows = holds(spec.rollout, lambda rollout: rollout is Rollout.GENERATE)
    return both(grows, repeated_cache_bytes(spec, architecture, tokens=tokens) == 0)


def _standing(moments: Sequence[Instant]) -> Count:
    """What stands at the end of a rollout beside the cache."""
    end = next(instant.sizes for instant in moments if instant.moment is Moment.GROWTH)
    return total(end) - end[Category.KV_CACHE]


def _cache_growth(spec: TrialKeys, architecture: DecoderShape, moments: Sequence[Instant]) -> Growth | None:
    """How the cache grows in a rollout, and what prefill has left for it; None where there is no rollout."""
    by_moment = {instant.moment: instant.sizes for instant in moments}
    if Moment.GROWTH not in by_moment or Moment.PREFILL not in by_moment:
        return None
    prefill, end = by_moment[Moment.PREFILL], by_moment[Moment.GROWTH]
    element, rows = kv_element_bytes(spec), spec.generation_batch_size
    tokens = spec.max_prompt_length + spec.max_completion_length - 1
    first, last = (
        growth_copy_bytes(architecture, sequences=rows, tokens=length, element=element, block=block_of(spec))
        for length in (spec.max_prompt_length, tokens)
    )
    widest = larger(element_bytes(spec).weight, element_bytes(spec).adapter if spec.tuning is Tuning.LORA else 0)
    return Growth(
        tensors=2 * architecture.num_hidden_layers,
        first=first,
        last=last,
        arena=prefill[Category.KV_CACHE] + prefill[Category.ACTIVATIONS] - end.get(Category.ACTIVATIONS, 0),
        largest=block_of(spec)(rows * spec.max_prompt_length * architecture.intermediate_size * widest),
    )
