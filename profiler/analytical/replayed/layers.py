"""What one decoder layer requests, stage by stage: its forward without gradient, its saved tensors, its backward.

The sizes are those of the formulas. Their largest instants are stages here; the stages that are never the largest (the
norms, the linear layers before and after attention, the kernel of attention) are added, because they decide into which
free blocks the others fit.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

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
    makes_scores,
    query_side_bytes,
    saved_scores_bytes,
    scores_forward_bytes,
    scores_made,
    scores_undone,
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
from profiler.analytical.formulas.models.parameters import (
    key_width,
    layers_of,
    output_width,
    projections,
    query_width,
)
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
from profiler.analytical.formulas.sizes.quantities import Blocks, Count, stages_of
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.trial_keys import Batch, DecoderShape, TrialKeys, layer_kinds
from profiler.analytical.replayed.requests import NO_BLOCKS, Requests, Stages, blocks, minus, plus, stages, union
from profiler.analytical.timeline.training_pass import unsaved_bytes
from profiler.domain.trials.trial import Tuning

Found = TypeVar("Found")

AfterLayer = Callable[[int], None]
"""What happens when a layer has run, by its number."""

_SCORED_LAYERS = 3
"""Layers of a forward that saves nothing: the later ones repeat them."""


def all_layers(architecture: DecoderShape) -> list[DecoderShape]:
    """Return the kind of each layer, kinds in the order of their first layers."""
    return [kind for kind in layer_kinds(architecture) for _ in range(int(kind.num_hidden_layers))]


def is_replayed(layers: Sequence[DecoderShape], number: int) -> bool:
    """Return whether a layer that leaves nothing, or one tensor, is replayed: the first, the last, and a new kind."""
    is_new = number == 0 or layers[number] is not layers[number - 1]
    return number < _SCORED_LAYERS or number >= len(layers) - _SCORED_LAYERS or is_new


def alone(kind: DecoderShape) -> DecoderShape:
    """Return a model with the layers of one kind only."""
    return cast("DecoderShape", replace(cast("Any", kind), first_layers=())) if kind.first_layers else kind


def of_one_layer(size: Count, kind: DecoderShape) -> Count:
    """Return the share of one layer."""
    return size // kind.num_hidden_layers


def _norm(spec: TrialKeys, values: Count, stream: Count) -> Stages:
    """Return the stages of a norm: its input in float32 and the square; then the product, and the result twice.

    Liger's kernel makes the result, and a number per row that is left out (`rms_norm_forward` in
    `liger_kernel/ops/rms_norm.py`, 0.8.5).
    """
    block = block_of(spec)
    if spec.use_liger_kernel:
        return [blocks(block(values * stream))]
    wide = block(values * FLOAT32_BYTES)
    if stream >= FLOAT32_BYTES:
        return [blocks(2 * wide)]
    return [blocks(2 * wide), blocks(wide + 2 * block(values * stream))]


def _keeps_input(spec: TrialKeys, kind: DecoderShape) -> bool:
    """Return whether the first norm of a layer saves the residual stream as it is, as Liger's does in every type."""
    return bool(spec.use_liger_kernel) and layers_of(kind).has_input_norms


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


def _same(blocks: Blocks) -> Blocks:
    return blocks


@dataclass(frozen=True, kw_only=True)
class Forward:
    """The stages of the forward of a layer, before and after keys and values are written to a cache."""

    before: Stages
    attention: Stages = ()
    """Queries, keys and values as attention by products has them; empty for another."""
    scores: Stages = ()
    """Its scores, of which the last stay until the end of the layer."""
    after: Stages

    def attend(self, requests: Requests, *, kept: Hashable = None, less: Callable[[Blocks], Blocks] = _same) -> None:
        """Request what comes after keys and values are there.

        Args:
            requests: Where it is requested.
            kept: The group of scores that stay longer than the layer; None if none do.
            less: What of the other blocks is requested.
        """
        requests.pass_through("work", map(less, self.attention))
        requests.pass_through("scores" if kept is None else kept, self.scores)
        requests.pass_through("work", map(less, self.after))
        requests.drop("scores")


def parts_scores(spec: TrialKeys, kind: DecoderShape, batch: Batch, *, autocast: bool) -> bool:
    """Return whether the scores of attention are requested one by one; not those of latent ones or of sinks."""
    is_plain = kind.latent is None and kind.linear is None and not layers_of(kind).has_sinks
    return is_plain and bool(makes_scores(spec, kind, batch, autocast=autocast))


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
    base = plus(blocks(block(values * element_bytes(spec).outer)), stream)
    norms = [plus(base, each) for each in _norm(spec, values, element)]
    largest = stages(layer_without_gradient_bytes(spec, kind, batch, adapted=adapted, autocast=autocast))
    after_norm = [plus(each, stream) for each in norms]
    if kind.latent is not None or kind.linear is not None:
        return Forward(before=norms, after=[*largest[1:], *after_norm, largest[0]])
    normed, parts = plus(base, stream), projections(kind)
    in_turn = parts_scores(spec, kind, batch, autocast=autocast)
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
    # Liger's kernel writes over queries and keys, which stay where the products have left them (`rope_forward`).
    until_attention = [*norms, *before] if spec.use_liger_kernel else [*norms, *before, rotary]
    at_scores = plus(normed, blocks(query_side_bytes(spec, kind, batch, autocast=autocast)))
    scores = [
        plus(at_scores, each) for each in stages(scores_forward_bytes(spec, kind, batch, autocast=autocast)) if each
    ]
    queries, output = (block(batch.positions * width(kind) * given) for width in (query_width, output_width))
    held = blocks(held_scores_bytes(spec, kind, batch, autocast=autocast))
    in_attention = plus(normed, blocks(queries + output))
    returned = _products(
        spec,
        kind,
        batch,
        [part for part in parts if part.name in OUTPUTS],
        base=plus(in_attention, NO_BLOCKS if in_turn else held),
        adapted=adapted,
        autocast=autocast,
    )
    attention = [in_attention, *returned, *after_norm]
    mlp = [each for each in largest if each != rotary and each not in scores and each not in attention]
    if not in_turn:
        return Forward(before=until_attention, after=[*scores, *attention, *mlp])
    made = scores_made(spec, kind, batch, autocast=autocast, trains=False)
    return Forward(
        before=until_attention,
        attention=[at_scores],
        scores=list(map(blocks, made)),
        after=[*attention, *(minus(each, held) for each in mlp)],
    )


@dataclass(frozen=True, kw_only=True)
class Saved:
    """What one layer keeps from forward until backward."""

    until_attention: Blocks
    all: Blocks
    scores: Stages = ()
    """How those scores that it keeps as well come about; the last is what it keeps."""
    inputs: Blocks
    """What stages of its forward count although norms save it: the input of the layer, and that of the first layer."""


def saved_blocks(spec: TrialKeys, kind: DecoderShape, batch: Batch) -> Saved:
    """Return what one layer saves: up to the end of attention, and in all."""
    whole = layer_saved_bytes(spec, kind, batch)
    after = saved_after_attention_bytes(spec, kind, batch.positions)
    autocast, made = bool(spec.mixed_precision), list[Blocks]()
    if parts_scores(spec, kind, batch, autocast=autocast):
        whole = whole - saved_scores_bytes(spec, kind, batch)
        made = list(map(blocks, scores_made(spec, kind, batch, autocast=autocast, trains=True)))
    inputs: Blocks = NO_BLOCKS
    if _keeps_input(spec, kind):
        # Next to adapters the norm of the first layer saves nothing, so that the embeddings are not kept.
        all_inputs = loop_blocks(spec, kind, batch)
        inputs = all_inputs if trains_everything(spec) else blocks(layer_input_bytes(spec, kind, batch))
    return Saved(until_attention=blocks(whole - after), all=blocks(whole), scores=made, inputs=inputs)


@dataclass(frozen=True, kw_only=True)
class Backward:
    """The stages of the backward of one layer, with everything that it uses."""

    recomputed: Forward | None
    """The forward under checkpointing, which ends with all that it saves; None without."""
    mlp: Stages
    attention: Stages
    """The norm before the MLP, when what the MLP saved is gone, and the output of attention."""
    scores: Stages
    heads: Stages
    """Gradients of queries, keys and values, and what is before them."""
    norm: Stages
    """The norm before attention, when all is gone."""
    gradients: Blocks
    """Gradients of the trained weights of the layer; those of adapters are left to the whole model."""


def backward_stages(spec: TrialKeys, kind: DecoderShape, batch: Batch) -> Backward:
    """Return the stages of the backward of one layer; `spec` is itemised."""
    block, sizes = block_of(spec), element_bytes(spec)
    stream, saved = blocks(layer_input_bytes(spec, kind, batch)), saved_blocks(spec, kind, batch)
    norm = plus(stream, stream, blocks(norm_backward(spec, kind, batch).size))
    recomputed = None
    copies: Blocks = NO_BLOCKS
    all_saved, until_attention = saved.all, saved.until_attention
    if spec.gradient_checkpointing:
        forward = forward_stages(spec, kind, batch, adapted=True, autocast=bool(spec.mixed_precision))
        loop = loop_blocks(spec, kind, batch)
        copies = blocks(recomputed_copies_bytes(spec, kind))
        if sizes.stream == FLOAT32_BYTES or _keeps_input(spec, kind):
            all_saved = minus(all_saved, stream)
        if _keeps_input(spec, kind):
            until_attention = minus(until_attention, stream)

        def with_saved(stage: Blocks) -> Blocks:
            return plus(stream, union(until_attention, minus(stage, loop)))

        at_end = [plus(copies, all_saved, each) for each in stages(recomputation_bytes(spec, kind, batch))]
        recomputed = Forward(
            before=[plus(stream, minus(each, loop)) for each in forward.before],
            attention=list(map(with_saved, forward.attention)),
            scores=saved.scores,
            after=[*map(with_saved, forward.after), *at_end],
        )
    mlp = [plus(copies, all_saved, each) for each in stages(mlp_backward_bytes(spec, kind, batch))]
    attention = attention_backward_bytes(spec, kind, batch)
    in_attention = [
        plus(copies, all_saved, each)
        for each, parts in zip(stages(attention), stages_of(attention), strict=True)
        if sum(size * count for size, count in parts) > 0
    ]
    if not in_attention or saved.scores:
        heads = 2 * block(batch.positions * query_width(kind) * sizes.compute)
        heads = heads + 2 * block(batch.positions * key_width(kind) * sizes.compute)
        in_attention = [plus(copies, until_attention, stream, blocks(heads))]
    # With the scores there are the gradients of the residual stream and of the values.
    values = blocks(block(batch.positions * query_width(kind) * sizes.compute))
    at_scores = plus(copies, until_attention, stream, values)
    gradients: Blocks = NO_BLOCKS
    if trains_everything(spec):
        gradients = blocks(of_one_layer(layer_gradients_bytes(spec, alone(kind)), kind))
    return Backward(
        recomputed=recomputed,
        mlp=mlp,
        attention=[plus(copies, until_attention, norm), *([at_scores] if saved.scores else [])],
        scores=list(map(blocks, scores_undone(spec, kind, batch))) if saved.scores else (),
        heads=in_attention,
        norm=[norm],
        gradients=gradients,
    )


def loop_blocks(spec: TrialKeys, kind: DecoderShape, batch: Batch) -> Blocks:
    """Return the embeddings and the input of a layer, which checkpointing keeps anyway."""
    embeddings = block_of(spec)(batch.positions * kind.hidden_size * element_bytes(spec).outer)
    return plus(blocks(embeddings), blocks(layer_input_bytes(spec, kind, batch)))


class KnownLayers:
    """What layers request, each computed once."""

    def __init__(self, spec: TrialKeys, architecture: DecoderShape) -> None:
        """Compute nothing yet; `spec` is itemised."""
        self._spec, self._architecture = spec, architecture
        self._known: dict[Hashable, object] = {}

    def _once(self, key: Hashable, compute: Callable[[], Found]) -> Found:
        if key not in self._known:
            self._known[key] = compute()
        return self._known[key]  # type: ignore[return-value]  # the key names what is computed

    def forward_of(self, kind: DecoderShape, batch: Batch, *, adapted: bool) -> Forward:
        """Return the forward of a layer."""
        autocast = bool(self._spec.mixed_precision)
        return self._once(
            ("forward", id(kind), batch, adapted),
            lambda: forward_stages(self._spec, kind, batch, adapted=adapted, autocast=autocast),
        )

    def backward_of(self, kind: DecoderShape, batch: Batch) -> Backward:
        """Return the backward of a layer."""
        return self._once(("backward", id(kind), batch), lambda: backward_stages(self._spec, kind, batch))

    def saved_of(self, kind: DecoderShape, batch: Batch, number: int) -> Saved:
        """Return what a layer saves; the first one does without what nothing before its adapters needs."""
        saved = self._once(("saved", id(kind), batch), lambda: saved_blocks(self._spec, kind, batch))
        if number or self._spec.gradient_checkpointing:
            return saved
        unsaved = self._once(
            ("unsaved", batch),
            lambda: blocks(unsaved_bytes(self._spec, layer_kinds(self._architecture), batch)),
        )
        if not unsaved:
            return saved
        scores = saved.scores if saved.scores and minus(saved.scores[-1], unsaved) else ()
        return Saved(until_attention=NO_BLOCKS, all=minus(saved.all, unsaved), scores=scores, inputs=NO_BLOCKS)

    def input_of(self, kind: DecoderShape, batch: Batch, number: int) -> Blocks:
        """Return what checkpointing keeps of a layer; the input of the first has the type of the embeddings."""
        if number:
            return self._once(("input", id(kind), batch), lambda: blocks(layer_input_bytes(self._spec, kind, batch)))
        loop = loop_blocks(self._spec, kind, batch)
        return minus(loop, blocks(layer_input_bytes(self._spec, kind, batch)))
