"""Reserved memory of a trial by a replay: its passes and steps, and the peak of the segments that they take."""

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import TypeVar

from profiler.analytical.formulas.head import (
    all_logits,
    head_backward_scratch,
    head_forward_scratch,
    head_saved,
    loss_bytes,
    score_scratch,
)
from profiler.analytical.formulas.layers.decoder_layer import layer_input_bytes
from profiler.analytical.formulas.layers.eager_attention import attention_mask_bytes
from profiler.analytical.formulas.layers.layer_backward import norm_backward
from profiler.analytical.formulas.models.trained import all_gradients, trains_everything
from profiler.analytical.formulas.models.weights import (
    autocast_more_bytes,
    autocast_saved_bytes,
    autocast_scoring_bytes,
)
from profiler.analytical.formulas.sizes.quantities import Blocks, HeadBytes, whole_units
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.trial_keys import (
    Batch,
    DecoderShape,
    TrialKeys,
    generated_micro_batch,
    itemised_keys,
    layer_kinds,
    longest_rows,
    one_row,
    tokens_of,
    unpadded,
)
from profiler.analytical.replayed.generation import Rollouts, all_layers, load
from profiler.analytical.replayed.layers import (
    NO_BLOCKS,
    Backward,
    Forward,
    Requests,
    Saved,
    backward_stages,
    blocks,
    forward_stages,
    loop_blocks,
    minus,
    others,
    per_layer,
    plus,
    saved_blocks,
    stages,
    times,
)
from profiler.analytical.timeline.instants import generated_inputs, of_one_thread, state, workspace
from profiler.analytical.timeline.step_instants import step_scratch
from profiler.analytical.timeline.training_pass import embedding_bytes, final_norm, unsaved_bytes
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import DistributedType, Logprobs, Rollout

_MOST_STEPS, _MOST_MICRO_BATCHES, _MOST_ROWS = 2, 2, 2
"""Of each kind as many are replayed: the first, and one that finds what the first has left. The others repeat it."""
_SCORED_LAYERS = 3
"""Layers of a forward that saves nothing: the later ones repeat them."""

Found = TypeVar("Found")


def has_replay(spec: TrialKeys) -> bool:
    """Return whether the requests of a trial are known: GRPO and RLOO on one GPU, with rollouts by transformers."""
    return (
        spec.recipe in (Recipe.GRPO, Recipe.RLOO)
        and spec.distributed_type is DistributedType.NO
        and not (spec.use_vllm or spec.critic or spec.reward_models or spec.images_per_prompt)
        and spec.per_device_eval_batch_size is None
        and not spec.use_liger_kernel
    )


def replayed_reserved_bytes(spec: TrialKeys, architecture: DecoderShape) -> int:
    """Return the peak of reserved memory of a trial on a card that is large enough for it.

    The formulas of the closed form say the size of each tensor, here one by one (`Itemised`), and the program of the
    trainer their order. The model of the allocator takes the segments.

    Args:
        spec: A trial with `has_replay`.
        architecture: Its model.
    """
    requests = Requests(str(spec.alloc_conf))
    _Trial(requests, itemised_keys(spec), architecture).run()
    return requests.peak_reserved_bytes


class _Trial:
    """The program of a trial."""

    def __init__(self, requests: Requests, spec: TrialKeys, architecture: DecoderShape) -> None:
        self._requests, self._spec, self._architecture = requests, spec, architecture
        self._layers, self._block = all_layers(architecture), block_of(spec)
        self._known: dict[Hashable, object] = {}
        self._checkpoints = spec.gradient_checkpointing
        self._trains_all = trains_everything(spec)
        self._workspace = blocks(of_one_thread(workspace(spec.gpu, self._block)).size)

    def run(self) -> None:
        """Request and free everything."""
        requests, spec, architecture = self._requests, self._spec, self._architecture
        load(requests, spec, architecture)
        requests.set("workspace of forward", self._workspace)
        rollouts, batch = Rollouts(requests, spec, architecture), generated_micro_batch(spec)
        accumulation, generation = int(spec.gradient_accumulation_steps), int(spec.steps_per_generation)
        grows = spec.rollout is Rollout.GENERATE
        steps = min(int(spec.steps), _MOST_STEPS)
        for step in range(steps):
            # The last step has all that an earlier one has.
            for number in range(min(accumulation, _MOST_MICRO_BATCHES if step == steps - 1 else 1)):
                if (step * accumulation + number) % generation == 0:
                    requests.drop("inputs")
                    requests.set("inputs", blocks(generated_inputs(spec).size))
                    rollouts.run(grows=grows)
                    # Later rollouts find the segments of the first.
                    grows = False
                    self._score(batch, is_aligned=accumulation % generation == 0)
                self._train(batch, is_first=number == 0)
            self._update()

    def _score(self, batch: Batch, *, is_aligned: bool) -> None:
        """Compute log-probabilities of the reference, or the old ones of the policy."""
        spec, architecture = self._spec, self._architecture
        is_old = spec.recipe is Recipe.RLOO or not is_aligned
        if not (spec.beta or is_old):
            return
        casts = autocast_scoring_bytes(spec, architecture) if is_old or self._trains_all else 0
        rows = [batch]
        if spec.logprobs is Logprobs.SLICED:
            rows = [one_row(batch), unpadded(one_row(batch))][: min(int(batch.rows), _MOST_ROWS)]
        for each in rows:
            self._forward_alone(each, adapted=is_old, casts=blocks(casts))

    def _forward_alone(self, batch: Batch, *, adapted: bool, casts: Blocks) -> None:
        requests, spec, architecture = self._requests, self._spec, self._architecture
        requests.set("mask", blocks(attention_mask_bytes(spec, architecture, batch)))
        kept = per_layer(casts, len(self._layers))
        for number, kind in enumerate(self._layers):
            if self._is_replayed(number):
                forward = self._forward_of(kind, batch, adapted=adapted)
                requests.pass_through("work", forward.before)
                requests.set("casts", times(kept, number + 1))
                requests.pass_through("work", forward.after)
        requests.set("casts", casts)
        self._head_forward(score_scratch(spec, architecture, batch), batch, rows="row that is scored", keeps=False)
        requests.drop("work", "row that is scored", "mask", "casts")

    def _train(self, batch: Batch, *, is_first: bool) -> None:
        """Run forward and backward of one micro-batch, in the rows that log-probabilities are computed in."""
        spec = self._spec
        if spec.logprobs is Logprobs.SLICED:
            longest = int(longest_rows(spec, batch.rows)) if batch.has_mask else int(batch.rows)
            padded = self._average_row(batch)
            rows = [unpadded(one_row(batch))] * longest + [padded] * (int(batch.rows) - longest)
            for number, row in enumerate(rows):
                self._forward(row, ("row", number))
            for number in reversed(range(len(rows))):
                is_last, is_new = number == 0, is_first and number == len(rows) - 1
                self._backward(rows[number], ("row", number), is_first=is_new, buffers=not is_first, is_last=is_last)
            return
        rows = [batch]
        if spec.logprobs is Logprobs.MINIBATCH:
            rows = [self._average_row(batch), unpadded(one_row(batch))][-min(int(batch.rows), _MOST_ROWS) :]
        for number, row in enumerate(rows):
            self._forward(row, "rows")
            self._backward(row, "rows", is_first=is_first and number == 0)

    def _average_row(self, batch: Batch) -> Batch:
        """Return one padded row, of which as many tokens are scored as of an average row of the generation batch."""
        generated = self._spec.generation_batch_size
        tokens = tokens_of(self._spec, rows=generated, longest=batch.completion_tokens)
        return replace(one_row(batch), scored_tokens=whole_units(tokens, generated))

    def _forward(self, batch: Batch, rows: Hashable) -> None:
        requests, spec, architecture = self._requests, self._spec, self._architecture
        layers = len(self._layers)
        requests.set((rows, "mask"), blocks(attention_mask_bytes(spec, architecture, batch)))
        copies = per_layer(blocks(autocast_saved_bytes(spec, architecture)), layers)
        more = blocks(autocast_more_bytes(spec, architecture, in_layer=True))
        cached, one_copy = per_layer(more, layers), others(more, layers)
        for number, kind in enumerate(self._layers):
            forward = self._forward_of(kind, batch, adapted=True)
            if self._checkpoints:
                loop = loop_blocks(spec, kind, batch)
                requests.set((rows, number), self._input_of(kind, batch, number))
                for stage in (*forward.before, *forward.after) if self._is_replayed(number) else ():
                    requests.set("work", plus(minus(stage, loop), one_copy))
                requests.set("casts", times(cached, number + 1))
            else:
                saved = self._saved_of(kind, batch, number)
                requests.pass_through("work", [minus(stage, saved.until_attention) for stage in forward.before])
                requests.set((rows, number), saved.until_attention)
                later = minus(saved.all, saved.until_attention)
                requests.pass_through("work", [minus(stage, later) for stage in forward.after])
                requests.set((rows, number), saved.all)
                requests.set((rows, "casts"), times(copies, number + 1))
        requests.set((rows, "norm"), blocks(final_norm(spec, architecture, batch).size))
        requests.set("casts", blocks(autocast_more_bytes(spec, architecture, in_layer=False)))
        saved_by_head = head_saved(spec, architecture, batch)
        self._head_forward(head_forward_scratch(spec, architecture, batch), batch, rows=(rows, "logits"), keeps=True)
        logits = loss_bytes(batch, self._block) if self._has_rows_of_logits() else saved_by_head.logits.size
        kept = plus(*(blocks(size) for size in (logits, saved_by_head.activations.size, saved_by_head.gradients.size)))
        requests.set((rows, "head"), kept)
        requests.drop("work", "casts")

    def _backward(
        self, batch: Batch, rows: Hashable, *, is_first: bool, buffers: bool = False, is_last: bool = True
    ) -> None:
        """Run the backward of some rows.

        Args:
            batch: The rows.
            rows: The groups of what they saved.
            is_first: Whether there are no gradients yet.
            buffers: Whether autograd adds up the gradients of several rows before it adds them to earlier ones.
            is_last: Whether these are the last of those rows.
        """
        requests, spec, architecture = self._requests, self._spec, self._architecture
        embedding = blocks(embedding_bytes(spec, architecture))
        is_tied = bool(architecture.tie_word_embeddings)
        stream = blocks(layer_input_bytes(spec, architecture, batch))

        def add(weights: Hashable, made: Blocks) -> None:
            """Make gradients of some weights."""
            if is_first:
                requests.set(("gradients", weights), made)
            elif buffers and not requests.has(("buffer", weights)):
                requests.set(("buffer", weights), made)
            else:
                requests.pass_through("new gradients", [made, NO_BLOCKS])
            if is_last:
                requests.drop(("buffer", weights))

        self._head_backward(batch, (rows, "logits"), plus(stream, embedding))
        # The thread of backward has a workspace of its own from its first product on.
        requests.set("workspace of backward", self._workspace)
        requests.drop("work")
        if is_tied:
            requests.set("gradient of a tied head", embedding)
        else:
            add("head", embedding)
        requests.drop((rows, "head"))
        requests.set("work", plus(stream, blocks(norm_backward(spec, architecture, batch).size)))
        requests.drop((rows, "norm"))
        copies = per_layer(blocks(autocast_saved_bytes(spec, architecture)), len(self._layers))
        for number in reversed(range(len(self._layers))):
            self._layer_backward(batch, rows, number)
            if copies:
                requests.set((rows, "casts"), times(copies, number))
            backward = self._backward_of(self._layers[number], batch)
            requests.pass_through("work", backward.norm)
            add(number, backward.gradients)
        requests.drop("work")
        add("embedding", embedding)
        requests.drop("gradient of a tied head", (rows, "mask"), (rows, "casts"))
        if not self._trains_all and is_first:
            requests.set(("gradients", "adapters"), blocks(all_gradients(spec, architecture).size))

    def _layer_backward(self, batch: Batch, rows: Hashable, number: int) -> None:
        """Run the backward of a layer, but for its first norm; what it saved goes."""
        requests, kind = self._requests, self._layers[number]
        if self._checkpoints and not self._trains_all and not self._is_replayed(number):
            requests.drop((rows, number))
            return
        backward, saved = self._backward_of(kind, batch), self._saved_of(kind, batch, number)
        kept = NO_BLOCKS if self._checkpoints else requests.sizes((rows, number))
        requests.pass_through("work", backward.recomputed)
        requests.pass_through("work", [minus(stage, kept) for stage in backward.mlp])
        if not self._checkpoints:
            left = {size: min(count, saved.until_attention.get(size, 0)) for size, count in kept.items()}
            requests.set((rows, number), {size: count for size, count in left.items() if count})
            kept = requests.sizes((rows, number))
        requests.pass_through("work", [minus(stage, kept) for stage in backward.attention])
        requests.drop((rows, number))

    def _update(self) -> None:
        """Run the optimizer, and drop the gradients."""
        requests, spec, architecture = self._requests, self._spec, self._architecture
        requests.set("state", blocks(state(spec, architecture).size))
        requests.pass_through("work", [*stages(step_scratch(spec, architecture).size), NO_BLOCKS])
        layers = range(len(self._layers))
        requests.drop(*(("gradients", weights) for weights in (*layers, "head", "embedding", "adapters")))

    def _is_replayed(self, number: int) -> bool:
        """Return whether the stages of a layer that leaves nothing, or one tensor, are replayed."""
        last, kind = len(self._layers) - 1, self._layers[number]
        is_new = number == 0 or kind is not self._layers[number - 1]
        return number < _SCORED_LAYERS or number > last - _SCORED_LAYERS or is_new

    # ---- the LM head -------------------------------------------------------------------------------------------------

    def _has_rows_of_logits(self) -> bool:
        """Return whether log-probabilities are the log-softmax of all logits, row by row (`logprobs=full`)."""
        logprobs = self._spec.logprobs
        by_row = logprobs.selection is None and logprobs.label_loss is None
        return logprobs.makes_all_logits and by_row and not self._architecture.scores

    def _head_forward(self, scratch: HeadBytes, batch: Batch, *, rows: Hashable, keeps: bool) -> None:
        """Compute log-probabilities; with `keeps` the log-softmax of each row stays."""
        requests, there = self._requests, blocks(scratch.activations.size)
        if not self._has_rows_of_logits():
            for logits in stages(scratch.logits.size):
                requests.set("work", plus(there, logits))
            return
        found = all_logits(self._spec, self._architecture, batch)
        whole, converted, row = (blocks(size) for size in (found.whole, found.converted, found.row))
        requests.set("work", plus(there, converted))
        requests.set("work", plus(there, converted, whole))
        for number in range(int(found.rows)):
            requests.set("work", plus(there, whole, blocks(found.cast_row)))
            requests.set(rows, times(row, number + 1 if keeps else 1))
            requests.set("work", plus(there, whole))

    def _head_backward(self, batch: Batch, rows: Hashable, made: Blocks) -> None:
        """Compute the gradients of logits, from the last row to the first, and `made` of them.

        Of all logits: the gradient of gather, of the log-softmax, and if that is wider of the row; their stack; that of
        the slice; and in the compute type.
        """
        requests, scratch = self._requests, head_backward_scratch(self._spec, self._architecture, batch)
        if not self._has_rows_of_logits():
            there = blocks(scratch.activations.size)
            for logits in stages(scratch.logits.size):
                for gradients in stages(scratch.gradients.size):
                    requests.set("work", plus(there, logits, gradients))
            return
        found = all_logits(self._spec, self._architecture, batch)
        whole, converted, row = (blocks(size) for size in (found.whole, found.converted, found.row))
        one = blocks(found.scored // int(found.rows))
        for number in range(int(found.rows)):
            requests.set("gradient of gather", row)
            if found.cast_row:
                requests.set("wide gradient", row)
                requests.drop("gradient of gather")
            requests.set("gradients of rows", times(one, number + 1))
            requests.drop("gradient of gather", "wide gradient")
            requests.set(rows, times(row, int(found.rows) - number - 1))
        stack = blocks(found.scored)
        requests.set("work", stack)
        requests.drop("gradients of rows")
        requests.pass_through("work", [plus(stack, whole), plus(whole, converted), plus(converted or whole, made)])

    # ---- what is computed once ---------------------------------------------------------------------------------------

    def _once(self, key: Hashable, compute: Callable[[], Found]) -> Found:
        if key not in self._known:
            self._known[key] = compute()
        return self._known[key]  # type: ignore[return-value]  # the key names what is computed

    def _forward_of(self, kind: DecoderShape, batch: Batch, *, adapted: bool) -> Forward:
        autocast = bool(self._spec.bf16)
        return self._once(
            ("forward", id(kind), batch, adapted),
            lambda: forward_stages(self._spec, kind, batch, adapted=adapted, autocast=autocast),
        )

    def _backward_of(self, kind: DecoderShape, batch: Batch) -> Backward:
        return self._once(("backward", id(kind), batch), lambda: backward_stages(self._spec, kind, batch))

    def _saved_of(self, kind: DecoderShape, batch: Batch, number: int) -> Saved:
        """Return what a layer saves; the first one does without what nothing before its adapters needs."""
        saved = self._once(("saved", id(kind), batch), lambda: saved_blocks(self._spec, kind, batch))
        if number or self._checkpoints:
            return saved
        unsaved = self._once(
            ("unsaved", batch),
            lambda: blocks(unsaved_bytes(self._spec, layer_kinds(self._architecture), batch)),
        )
        return Saved(until_attention=NO_BLOCKS, all=minus(saved.all, unsaved)) if unsaved else saved

    def _input_of(self, kind: DecoderShape, batch: Batch, number: int) -> Blocks:
        """Return what checkpointing keeps of a layer; the input of the first has the type of the embeddings."""
        if number:
            return self._once(("input", id(kind), batch), lambda: blocks(layer_input_bytes(self._spec, kind, batch)))
        loop = loop_blocks(self._spec, kind, batch)
        return minus(loop, blocks(layer_input_bytes(self._spec, kind, batch)))
