"""The bound of reserved memory: allocated memory, cached segments, and those that a growing KV cache outgrows.

It is for searches over many trials; of one trial the requests are replayed (`replayed/trial.py`).

The model. Tensors of one category have the same few sizes in every step, so a category keeps the segments that it once
needed; tensors of another category have other sizes, and get segments of their own while these are in use or split. So
reserved memory is the sum over categories of the largest size of each at any instant; allocated memory is the largest
sum at one instant. With `expandable_segments` pages are mapped freely, no segment is left over, and both are equal.
Rounding to segments (2 MiB, 20 MiB) is left out: at most 20 MiB per kind of tensor.

A KV cache that grows by concatenation is the exception. `torch.cat` copies the keys and the values of each layer at
every token into a tensor that is a little longer. From 10 MiB on it gets a segment of its own, a multiple of 2 MiB,
unless it fits a free block, of which the activations and the first keys and values of prefill leave large ones behind.
The old segments stay reserved, and too small for what follows: one generation of segments per 2 MiB of growth. If the
hidden states of a micro-batch are larger than the largest of these segments, training cannot use them either.

An engine of vLLM that sleeps is another exception: trl empties the allocator's cache before it wakes the weights
(`VLLMGeneration.sync_weights` in trl 1.16), and the engine unmaps its memory when it sleeps. So training has a sum of
its own, and a rollout has the engine and what an emptied cache keeps: the segments that hold a tensor.

Source of the rules: `c10/cuda/CUDACachingAllocator.cpp`: `get_allocation_size`, `get_free_block` (best fit, same pool),
`should_split` (a remainder above 1 MiB), `free_block` (merges within a segment only). Nothing is fitted. Does not hold
for a card that is nearly full: there the allocator releases cached segments.

Error against the simulation, over 470 sampled trials (seed 2029): median 3.7 %, 95th percentile 32 %. It is too low
where tensors of one category have many sizes (eager attention), too high where blocks of one fit another (all logits).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from profiler.analytical.formulas.head import all_logits_classes_bytes
from profiler.analytical.formulas.layers.decoder_layer import layer_input_bytes
from profiler.analytical.formulas.layers.eager_attention import repeated_cache_bytes
from profiler.analytical.formulas.models.parameters import widest_inner
from profiler.analytical.formulas.models.trained import element_bytes
from profiler.analytical.formulas.rollout import growth_copy, kv_element_bytes
from profiler.analytical.formulas.sizes.quantities import NOTHING, Count, Flag, both, holds, larger, smaller, where
from profiler.analytical.formulas.sizes.rounding import block_of, has_expandable_segments, with_fragments
from profiler.analytical.formulas.sizes.trial_keys import DecoderShape, TrialKeys, generated_micro_batch, layer_kinds
from profiler.analytical.formulas.vllm_memory import cached_copies_bytes, engine_sleeps
from profiler.analytical.timeline.instants import Instant, InstantName
from profiler.analytical.timeline.recipes.registry import in_engine_type, micro_batch
from profiler.domain.memory import MIB, Category, Phase
from profiler.domain.trials.trial import Rollout, Tuning

_OWN_SEGMENT_BYTES = 10 * MIB
_STEP_BYTES = 2 * MIB
_SHARED_SEGMENT_BYTES = 20 * MIB
_MOST_IN_A_SEGMENT = 8
"""If a segment of prefill holds more tensors than this, all tensors fit into the segments of prefill."""


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Growth of the KV cache: tensors of equal size that grow by one token at a time."""

    tensors: Count
    """Number of tensors: keys and values of all layers."""
    first: Count
    """Bytes of one tensor after prefill."""
    last: Count
    """Bytes of one tensor at the end of the rollout."""
    arena: Count
    """Bytes of the segments that prefill leaves behind, in which freed blocks merge."""
    largest: Count
    """Bytes of the largest tensor of prefill, which is the size of these segments."""

    @property
    def shared(self) -> Count:
        """Bytes of the segments that tensors share, which do not fragment."""
        return larger(self.arena, smaller(self.last, _OWN_SEGMENT_BYTES) * self.tensors)


def growth_segments_bytes(growth: Growth) -> Count:
    """Return the bytes of all segments at the end of the growth: shared ones, and those of single tensors.

    By hand, 4 tensors from 10 to 15 MiB, an arena of 40 MiB in segments of 10 MiB: 40 + 168 = 208 MiB.
    """
    return growth.shared + own_segments_bytes(growth)


def own_segments_bytes(growth: Growth) -> Count:
    """Return the bytes of segments that hold a single tensor of the cache, outgrown ones included.

    Tensors below 10 MiB share segments of 20 MiB, which count as an arena too. A shared segment of size g holds
    m = g // s tensors of size s. Of n tensors, n - m x arena / g have segments of their own: s rounded up to 2 MiB, and
    a new one per 2 MiB of growth.

    By hand, 4 tensors from 10 to 15 MiB, an arena of 40 MiB in segments of 10 MiB: none of these holds 12 MiB, so there
    are 4 segments each of 12, 14 and 16 MiB: 4 x 42 = 168 MiB.

    Does not hold if other blocks of these sizes are allocated between two tokens, nor on a nearly full card, where the
    allocator releases outgrown segments.
    """
    first, last, shared = growth.first, growth.last, growth.shared
    segment = larger(growth.largest, first, where(first < _OWN_SEGMENT_BYTES, _SHARED_SEGMENT_BYTES, 0))
    highest = (last + _STEP_BYTES - 1) // _STEP_BYTES
    lowest = larger(first + _STEP_BYTES - 1, _OWN_SEGMENT_BYTES - 1) // _STEP_BYTES + 1
    total: Count = 0
    for held in range(_MOST_IN_A_SEGMENT + 1):
        below = segment // (_STEP_BYTES * (held + 1)) + 1
        above = segment // (_STEP_BYTES * held) if held else highest
        start, end = larger(lowest, below), smaller(highest, above)
        count = larger(0, end - start + 1)
        own = larger(0, growth.tensors - held * shared // segment)
        total = total + own * _STEP_BYTES * (start + end) * count // 2
    # Tensors of 9 MiB still share segments, although 9 MiB rounded up is 10.
    return where(last < _OWN_SEGMENT_BYTES, 0, total)


def peak_reserved_bytes(spec: TrialKeys, architecture: DecoderShape, instants: Sequence[Instant]) -> Count:
    """Return the peak of reserved memory of a trial on a card that is large enough for it.

    A trial of one step allocates its optimizer state after backward, in segments that backward has freed: the state
    adds nothing to the sum.

    By hand: two instants of (weights 4, activations 3, logits 0) and (4, 1, 2) allocate 7 and reserve 4 + 3 + 2 = 9.

    Args:
        spec: The trial.
        architecture: Its model.
        instants: All instants of the trial.
    """
    spec = in_engine_type(spec)
    peak: Count = 0
    for instant in instants:
        peak = larger(peak, instant.total_bytes)
    step = [each for each in instants if each.phase is not Phase.LOAD and each.name is not InstantName.SENDING]
    envelope = _sum_of_largest(spec, architecture, step, growth=_cache_growth(spec, architecture, instants))
    if spec.use_vllm:
        rollout = [instant for instant in step if instant.phase is Phase.ROLLOUT]
        others = [instant for instant in step if instant.phase is not Phase.ROLLOUT]
        training = _sum_of_largest(spec, architecture, others, growth=None)
        envelope = where(engine_sleeps(spec), larger(_of_woken_engine(rollout), training), envelope)
    is_expandable = holds(spec.alloc_conf, has_expandable_segments)
    return larger(peak, where(is_expandable, peak, larger(peak, envelope)) + cached_copies_bytes(spec, architecture))


def _of_woken_engine(instants: Sequence[Instant]) -> Count:
    """Return the engine, whose tensors are as large as its segments, and the segments that hold other tensors."""
    peak: Count = 0
    for instant in instants:
        engine = instant.terms.get(Category.ENGINE, NOTHING).size
        peak = larger(peak, where(instant.happens, engine + with_fragments(instant.total_bytes - engine), 0))
    return peak


def _sum_of_largest(
    spec: TrialKeys, architecture: DecoderShape, instants: Sequence[Instant], *, growth: Growth | None
) -> Count:
    """Return the sum over categories of the largest size of each, with what a growing cache leaves behind."""
    kept: dict[Category, Count] = {}
    for instant in instants:
        for category, term in instant.terms.items():
            kept[category] = larger(kept.get(category, 0), where(instant.happens, term.size, 0))
    if spec.logprobs.makes_all_logits and Category.LOGITS in kept:
        classes = all_logits_classes_bytes(spec, architecture, micro_batch(spec))
        kept[Category.LOGITS] = larger(kept[Category.LOGITS], classes)
    kept[Category.OPTIMIZER_STATE] = where(spec.steps > 1, kept.get(Category.OPTIMIZER_STATE, 0), 0)
    if growth is None:
        return sum(kept.values())
    fragments = _fragments(spec, architecture)
    own = where(fragments, own_segments_bytes(growth), 0)
    is_too_small = layer_input_bytes(spec, architecture, generated_micro_batch(spec)) > growth.last
    kept[Category.KV_CACHE] = larger(kept[Category.KV_CACHE], where(is_too_small, own, 0))
    grown = where(fragments, _outside_the_cache(instants) + growth_segments_bytes(growth), 0)
    return larger(sum(kept.values()), grown)


def _fragments(spec: TrialKeys, architecture: DecoderShape) -> Flag:
    """Return whether the growing cache gets segments of its own.

    It does not with `rollout=synthetic`, which fills the cache at once, nor if each step repeats keys and values for
    all query heads: these larger blocks are freed between two tokens, and the cache fits into them.
    """
    tokens = spec.max_prompt_length + spec.max_completion_length - 1
    grows = holds(spec.rollout, lambda rollout: rollout is Rollout.GENERATE)
    return both(grows, repeated_cache_bytes(spec, architecture, tokens=tokens) == 0)


def _outside_the_cache(instants: Sequence[Instant]) -> Count:
    """Return the bytes at the end of a rollout that are not KV cache."""
    end = next(instant.sizes for instant in instants if instant.name is InstantName.GROWTH)
    return sum(end.values()) - end[Category.KV_CACHE]


def _cache_growth(spec: TrialKeys, architecture: DecoderShape, instants: Sequence[Instant]) -> Growth | None:
    """Return the growth of the cache in a rollout; None if there is no rollout."""
    by_name = {instant.name: instant for instant in instants}
    if InstantName.GROWTH not in by_name or InstantName.PREFILL not in by_name:
        return None
    prefill, end = by_name[InstantName.PREFILL].sizes, by_name[InstantName.GROWTH].sizes
    element, rows = kv_element_bytes(spec), spec.generation_batch_size
    tokens = spec.max_prompt_length + spec.max_completion_length - 1
    first, last = (
        growth_copy(architecture, sequences=rows, tokens=length, element=element, block=block_of(spec)).size
        for length in (spec.max_prompt_length, tokens)
    )
    widest = larger(element_bytes(spec).weight, element_bytes(spec).adapter if spec.tuning is Tuning.LORA else 0)
    grows = [kind.num_hidden_layers for kind in layer_kinds(architecture) if kind.linear is None]
    return Growth(
        tensors=2 * sum(grows),
        first=first,
        last=last,
        arena=prefill[Category.KV_CACHE] + prefill[Category.ACTIVATIONS] - end.get(Category.ACTIVATIONS, 0),
        largest=block_of(spec)(rows * spec.max_prompt_length * widest_inner(architecture) * widest),
    )
