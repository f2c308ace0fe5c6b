"""Groups of blocks that are requested together, and the groups that one decoder layer requests, stage by stage.

A layer has its forward without gradient, its saved tensors and its backward.

The sizes are those of the formulas. Their largest instants are stages here; the stages that are never the largest (the
norms, the linear layers before and after attention, the kernel of attention) are added, because they decide into which
free blocks the others fit.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from profiler.allocator.alloc_conf import parse_alloc_conf
from profiler.allocator.model.blocks import Block
from profiler.allocator.model.caching import CachingAllocator
from profiler.allocator.settings import MIN_BLOCK_BYTES, SMALL_BYTES
from profiler.analytical.formulas.layers.decoder_layer import (
    ATTENTION_INPUTS,
    OUTPUTS,
    adapted_parts,
    layer_input_bytes,
    layer_saved_bytes,
    saved_after_attention_bytes,
)
from profiler.analytical.formulas.layers.eager_attention import (
    held_scores_bytes,
    query_side_bytes,
    scores_forward_bytes,
)
from profiler.analytical.formulas.layers.layer_backward import (
    attention_backward_bytes,
    mlp_backward_bytes,
    norm_backward,
    recomputation_bytes,
)
from profiler.analytical.formulas.layers.layer_without_gradient import (
    adapter_input_bytes,
    adapter_result_bytes,
    layer_without_gradient_bytes,
    rotary_bytes,
)
from profiler.analytical.formulas.models.parameters import key_width, output_width, projections, query_width
from profiler.analytical.formulas.models.tensor_groups import Projection
from profiler.analytical.formulas.models.trained import (
    FLOAT32_BYTES,
    element_bytes,
    layer_gradients_bytes,
    linear_output_bytes,
    stream_bytes,
    trains_everything,
)
from profiler.analytical.formulas.models.weights import recomputed_copies_bytes, widened_bytes
from profiler.analytical.formulas.sizes.quantities import Blocks, Count, largest_blocks, stage_blocks, stages_of
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.trial_keys import Batch, DecoderShape, TrialKeys
from profiler.domain.trials.trial import Tuning

NO_BLOCKS: Blocks = {}


def plus(*parts: Blocks) -> dict[int, int]:
    """Return the blocks of all parts."""
    found: dict[int, int] = {}
    for part in parts:
        for size, count in part.items():
            found[size] = found.get(size, 0) + count
    return found


def times(blocks: Blocks, factor: int) -> dict[int, int]:
    """Return the blocks `factor` times."""
    return {size: count * factor for size, count in blocks.items()} if factor else {}


def minus(blocks: Blocks, others: Blocks) -> dict[int, int]:
    """Return the blocks without `others`."""
    return {size: count - others.get(size, 0) for size, count in blocks.items() if count > others.get(size, 0)}


def union(first: Blocks, second: Blocks) -> dict[int, int]:
    """Return the blocks of both, of which those of one size are the same ones."""
    return {**first, **{size: max(count, first.get(size, 0)) for size, count in second.items()}}


def per_layer(blocks: Blocks, layers: int) -> dict[int, int]:
    """Return the blocks that each of `layers` layers has."""
    return {size: count // layers for size, count in blocks.items() if count >= layers}


def others(blocks: Blocks, layers: int) -> dict[int, int]:
    """Return the blocks that not every one of `layers` layers has."""
    return minus(blocks, times(per_layer(blocks, layers), layers))


def packed(blocks: Blocks) -> dict[int, int]:
    """Return the blocks with small ones joined to such of 1 MiB and one rest.

    They share segments of 2 MiB of their own, and blocks of one group come and go together. By hand, 3 blocks of
    0.5 MiB and one of 4 MiB: 1 MiB, 0.5 MiB and 4 MiB.
    """
    small = sum(
        -(-size // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES * count for size, count in blocks.items() if size <= SMALL_BYTES
    )
    found = {size: count for size, count in blocks.items() if size > SMALL_BYTES}
    return plus(found, {SMALL_BYTES: small // SMALL_BYTES} if small >= SMALL_BYTES else {}, _rest(small % SMALL_BYTES))


def _rest(size: int) -> dict[int, int]:
    return {size: 1} if size else {}


def blocks(size: Count) -> dict[int, int]:
    """Return the packed blocks of a number at its largest stage."""
    return packed(largest_blocks(size))


def stages(size: Count) -> list[dict[int, int]]:
    """Return the packed blocks of each stage of a number."""
    return [packed(stage) for stage in stage_blocks(size)]


class Requests:
    """An allocator on a card of unlimited memory, and the groups of blocks that are in use."""

    def __init__(self, alloc_conf: str) -> None:
        """Begin with nothing; the settings are those of `PYTORCH_CUDA_ALLOC_CONF`."""
        self._allocator = CachingAllocator(capacity_bytes=None, config=parse_alloc_conf(alloc_conf))
        self._groups: dict[Hashable, dict[int, list[Block]]] = {}

    @property
    def peak_allocated_bytes(self) -> int:
        """Most bytes of blocks in use."""
        return self._allocator.peak_allocated_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        """Most bytes of segments."""
        return self._allocator.peak_reserved_bytes

    def has(self, group: Hashable) -> bool:
        """Return whether a group has blocks."""
        return group in self._groups

    def sizes(self, group: Hashable) -> dict[int, int]:
        """Return the blocks of a group."""
        return {size: len(found) for size, found in self._groups.get(group, {}).items()}

    def set(self, group: Hashable, wanted: Blocks) -> None:
        """Free the blocks of a group that are not wanted, the latest first; then request those that are missing."""
        have = self._groups.setdefault(group, {})
        allocate, free = self._allocator.allocate, self._allocator.free
        for size in list(have):
            found, left = have[size], wanted.get(size, 0)
            while len(found) > left:
                free(found.pop())
            if not found:
                del have[size]
        for size, count in wanted.items():
            missing = count - len(have.get(size, ()))
            if missing > 0:
                have.setdefault(size, []).extend(allocate(size) for _ in range(missing))
        if not have:
            del self._groups[group]

    def pass_through(self, group: Hashable, wanted: Iterable[Blocks]) -> None:
        """Set a group to one stage after the other."""
        for each in wanted:
            self.set(group, each)

    def drop(self, *groups: Hashable) -> None:
        """Free the blocks of groups."""
        for group in groups:
            self.set(group, NO_BLOCKS)

    def empty_cache(self) -> None:
        """Give back all segments without blocks in use."""
        self._allocator.empty_cache()


class GrowingCache:
    """Tensors that are concatenated to longer ones, layer by layer: the longer one is there before the other goes."""

    def __init__(self, requests: Requests) -> None:
        self._allocator = requests._allocator
        self._layers: list[list[Block]] = []

    def add(self, sizes: Sequence[int]) -> None:
        """Add a layer with tensors of these bytes."""
        self._layers.append([self._allocator.allocate(size) for size in sizes])

    def grow(self, layer: int, sizes: Sequence[int]) -> None:
        """Replace the tensors of a layer; one of the same bytes stays."""
        tensors = self._layers[layer]
        for place, size in enumerate(sizes):
            before = tensors[place]
            if before.requested_bytes != size:
                tensors[place] = self._allocator.allocate(size)
                self._allocator.free(before)

    def drop(self) -> None:
        """Free all tensors."""
        for tensors in self._layers:
            for block in tensors:
                self._allocator.free(block)
        self._layers = []


def counted(sizes: Iterable[int]) -> Mapping[int, int]:
    """Return blocks of these bytes."""
    return plus(*({size: 1} for size in sizes))


Stages = Sequence[Blocks]


def alone(kind: DecoderShape) -> DecoderShape:
    """Return a model with the layers of one kind only."""
    return cast("DecoderShape", replace(cast("Any", kind), first_layers=())) if kind.first_layers else kind


def of_one_layer(size: Count, kind: DecoderShape) -> Count:
    """Return the share of one layer."""
    return size // kind.num_hidden_layers


def _norm(spec: TrialKeys, values: Count, stream: Count) -> Stages:
    """Return the stages of a norm: its input in float32 and the square; then the product, and the result twice."""
    block = block_of(spec)
    wide = block(values * FLOAT32_BYTES)
    if stream >= FLOAT32_BYTES:
        return [blocks(2 * wide)]
    return [blocks(2 * wide), blocks(wide + 2 * block(values * stream))]


def _products(
    spec: TrialKeys,
    kind: DecoderShape,
    batch: Batch,
    parts: Sequence[Projection],
    *,
    base: Blocks,
    adapted: bool,
    autocast: bool,
) -> Stages:
    """Return the stages of linear layers whose results stay: a widened weight, and what an adapter makes, go again."""
    block, given = block_of(spec), linear_output_bytes(spec, autocast=autocast)
    stream, found, made = stream_bytes(spec, autocast=autocast), list[Blocks](), base
    for part in parts:
        made = plus(made, blocks(block(batch.positions * part.out_features * given)))
        if spec.tuning is Tuning.QLORA:
            found.append(plus(made, blocks(widened_bytes(spec, part.weights, batch.positions, autocast=autocast))))
        if adapted and adapted_parts(spec, kind, (part.name,)):
            copy = adapter_input_bytes(spec, batch.positions * part.in_features, stream, autocast=autocast)
            results = adapter_result_bytes(spec, batch.positions * part.out_features, autocast=autocast)
            found.append(plus(made, blocks(copy + results)))
        found.append(made)
    return found


@dataclass(frozen=True, kw_only=True)
class Forward:
    """The stages of a forward that saves nothing, before and after keys and values are written to a cache."""

    before: Stages
    after: Stages


def forward_stages(spec: TrialKeys, kind: DecoderShape, batch: Batch, *, adapted: bool, autocast: bool) -> Forward:
    """Return the stages of one layer that saves nothing, with the embeddings and the input of the layer in each.

    Args:
        spec: The trial, itemised.
        kind: A model with the layers of one kind.
        batch: The rows.
        adapted: Whether adapters are used.
        autocast: Whether autocast is on.
    """
    block, values = block_of(spec), batch.positions * kind.hidden_size
    given, element = linear_output_bytes(spec, autocast=autocast), stream_bytes(spec, autocast=autocast)
    stream = blocks(block(values * element))
    base = plus(blocks(block(values * element_bytes(spec).weight)), stream)
    norms = [plus(base, each) for each in _norm(spec, values, element)]
    largest = stages(layer_without_gradient_bytes(spec, kind, batch, adapted=adapted, autocast=autocast))
    after_norm = [plus(each, stream) for each in norms]
    if kind.latent is not None or kind.linear is not None:
        return Forward(before=norms, after=[*largest[1:], *after_norm, largest[0]])
    normed, parts = plus(base, stream), projections(kind)
    before = _products(
        spec,
        kind,
        batch,
        [part for part in parts if part.name in ATTENTION_INPUTS],
        base=normed,
        adapted=adapted,
        autocast=autocast,
    )
    rotary = plus(normed, blocks(rotary_bytes(spec, kind, batch, autocast=autocast)))
    scores = [
        plus(normed, blocks(query_side_bytes(spec, kind, batch, autocast=autocast)), each)
        for each in stages(scores_forward_bytes(spec, kind, batch, autocast=autocast))
        if each
    ]
    queries, output = (block(batch.positions * width(kind) * given) for width in (query_width, output_width))
    held = held_scores_bytes(spec, kind, batch, autocast=autocast)
    in_attention = plus(normed, blocks(queries + output))
    returned = _products(
        spec,
        kind,
        batch,
        [part for part in parts if part.name in OUTPUTS],
        base=plus(in_attention, blocks(held)),
        adapted=adapted,
        autocast=autocast,
    )
    attention = [*scores, in_attention, *returned, *after_norm]
    mlp = [each for each in largest if each != rotary and each not in attention]
    return Forward(before=[*norms, *before, rotary], after=[*attention, *mlp])


@dataclass(frozen=True, kw_only=True)
class Saved:
    """What one layer keeps from forward until backward."""

    until_attention: Blocks
    all: Blocks


def saved_blocks(spec: TrialKeys, kind: DecoderShape, batch: Batch) -> Saved:
    """Return what one layer saves: up to the end of attention, and in all."""
    whole = layer_saved_bytes(spec, kind, batch)
    after = saved_after_attention_bytes(spec, kind, batch.positions)
    return Saved(until_attention=blocks(whole - after), all=blocks(whole))


@dataclass(frozen=True, kw_only=True)
class Backward:
    """The stages of the backward of one layer, with everything that it uses."""

    recomputed: Stages
    """The forward under checkpointing; empty without."""
    mlp: Stages
    attention: Stages
    """From the norm before the MLP on, when what the MLP saved is gone."""
    norm: Stages
    """The norm before attention, when all is gone."""
    gradients: Blocks
    """Gradients of the trained weights of the layer; those of adapters are left to the whole model."""


def backward_stages(spec: TrialKeys, kind: DecoderShape, batch: Batch) -> Backward:
    """Return the stages of the backward of one layer; `spec` is itemised."""
    block, sizes = block_of(spec), element_bytes(spec)
    stream, saved = blocks(layer_input_bytes(spec, kind, batch)), saved_blocks(spec, kind, batch)
    norm = plus(stream, stream, blocks(norm_backward(spec, kind, batch).size))
    recomputed: list[Blocks] = []
    copies: Blocks = NO_BLOCKS
    all_saved = saved.all
    if spec.gradient_checkpointing:
        forward = forward_stages(spec, kind, batch, adapted=True, autocast=bool(spec.bf16))
        loop = loop_blocks(spec, kind, batch)
        copies = blocks(recomputed_copies_bytes(spec, kind))
        if sizes.stream == FLOAT32_BYTES:
            all_saved = minus(all_saved, stream)
        recomputed = [plus(stream, minus(each, loop)) for each in forward.before]
        recomputed += [plus(stream, union(saved.until_attention, minus(each, loop))) for each in forward.after]
        recomputed += [plus(copies, all_saved, each) for each in stages(recomputation_bytes(spec, kind, batch))]
    mlp = [plus(copies, all_saved, each) for each in stages(mlp_backward_bytes(spec, kind, batch))]
    attention = attention_backward_bytes(spec, kind, batch)
    in_attention = [
        plus(copies, all_saved, each)
        for each, parts in zip(stages(attention), stages_of(attention), strict=True)
        if sum(size * count for size, count in parts) > 0
    ]
    if not in_attention:
        heads = 2 * block(batch.positions * query_width(kind) * sizes.compute)
        heads = heads + 2 * block(batch.positions * key_width(kind) * sizes.compute)
        in_attention = [plus(copies, saved.until_attention, stream, blocks(heads))]
    gradients: Blocks = NO_BLOCKS
    if trains_everything(spec):
        gradients = blocks(of_one_layer(layer_gradients_bytes(spec, alone(kind)), kind))
    return Backward(
        recomputed=recomputed,
        mlp=mlp,
        attention=[plus(copies, saved.until_attention, norm), *in_attention],
        norm=[norm],
        gradients=gradients,
    )


def loop_blocks(spec: TrialKeys, kind: DecoderShape, batch: Batch) -> Blocks:
    """Return the embeddings and the input of a layer, which checkpointing keeps anyway."""
    embeddings = block_of(spec)(batch.positions * kind.hidden_size * element_bytes(spec).weight)
    return plus(blocks(embeddings), blocks(layer_input_bytes(spec, kind, batch)))
