"""Requests of the LM head of a trial: of its forward, of what trl logs, and of its backward.

The order of the blocks of all logits at once is that of the statements of `profiler/training/recipes`, and of autograd;
of losses of preferences that of the programs whose they are (`PairLoss`).
"""

from collections.abc import Hashable

from profiler.analytical.formulas.chunked_loss import Chunk, chunk_of
from profiler.analytical.formulas.head import (
    entropy_bytes,
    good_completions_bytes,
    head_backward_scratch,
    head_forward_scratch,
    head_saved,
    loss_bytes,
    score_scratch,
)
from profiler.analytical.formulas.models.trained import (
    AllLogits,
    all_logits,
    copy_bytes,
    element_bytes,
    trains_everything,
)
from profiler.analytical.formulas.models.weights import head_cast_bytes, head_copy_bytes
from profiler.analytical.formulas.sizes.quantities import Blocks
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.trial_keys import Batch, DecoderShape, TrialKeys
from profiler.analytical.replayed.requests import NO_BLOCKS, Requests, blocks, plus, stages, times
from profiler.analytical.timeline.instants import embedding_bytes, of_one_thread, workspace
from profiler.domain.trials.trial import CHUNK_TOKENS

_MOST_CHUNKS = 3
"""Chunks that are replayed: the first two make their gradients, and the next one adds to their sum."""


def chunks_of(batch: Batch) -> int:
    """Return the number of chunks of `logprobs=chunked_nll`. By hand, 257 tokens with a label: 2."""
    return -(-int(batch.scored_tokens) // CHUNK_TOKENS)


class Head:
    """The LM head of a trial. Of some rows it keeps the groups ``(rows, "head")`` and ``(rows, "logits")``."""

    def __init__(self, requests: Requests, spec: TrialKeys, architecture: DecoderShape) -> None:
        """Prepare it; `spec` is itemised."""
        self._requests, self._spec, self._architecture = requests, spec, architecture
        self._all_at_once = spec.logprobs.makes_all_logits and not architecture.scores
        self._pairs = spec.logprobs.pair_loss
        self._embedding = blocks(embedding_bytes(spec, architecture))
        self._workspace = blocks(of_one_thread(workspace(spec.gpu, block_of(spec))).size)

    def forward(self, batch: Batch, rows: Hashable) -> None:
        """Compute log-probabilities, or scores; keep what backward needs of them."""
        requests, spec, architecture = self._requests, self._spec, self._architecture
        scratch, saved = head_forward_scratch(spec, architecture, batch), head_saved(spec, architecture, batch)
        there, kept = blocks(scratch.activations.size), blocks(saved.activations.size)
        if self._all_at_once:
            found = all_logits(spec, architecture, batch)
            requests.set("work", there)
            requests.set((rows, "head"), kept)
            if spec.logprobs.label_loss is not None:
                self._loss_of_labels(found, batch, rows)
            else:
                self._outputs(found, rows)
                self._select(found, rows)
                self._log_entropy(found, batch)
                if self._pairs is not None:
                    requests.rename("logits", "held")
                requests.drop("logits", "quotient")
            requests.set((rows, "head"), plus(kept, blocks(loss_bytes(batch, block_of(spec)))))
            return
        if spec.logprobs.chunked_loss is not None:
            requests.set("work", there)
            one = chunk_of(spec, architecture, batch)
            for _ in range(min(chunks_of(batch), _MOST_CHUNKS)):
                self._compute_chunk(one)
                requests.drop("scores")
        for logits in stages(scratch.logits.size) if spec.logprobs.has_fused_head else ():
            requests.set("work", plus(there, logits))
        requests.set((rows, "head"), plus(kept, *(blocks(part.size) for part in (saved.logits, saved.gradients))))

    def forward_alone(self, batch: Batch, *, holds: bool = False) -> None:
        """Compute log-probabilities and keep nothing, but with `holds` the logits until the end of the loss."""
        requests, spec, architecture = self._requests, self._spec, self._architecture
        scratch = score_scratch(spec, architecture, batch)
        there = blocks(scratch.activations.size)
        if not self._all_at_once:
            for logits in stages(scratch.logits.size):
                requests.set("work", plus(there, logits))
            requests.drop("work")
            return
        found = all_logits(spec, architecture, batch)
        requests.set("work", there)
        if not (trains_everything(spec) and element_bytes(spec).caches_head):
            requests.set("copy of the head", blocks(head_copy_bytes(spec, architecture)))
        if spec.logprobs.label_loss is not None:
            self._loss_of_labels(found, batch, None)
            return
        self._outputs(found, None)
        requests.drop("copy of the head")
        self._select(found, None)
        if holds:
            requests.rename("logits", "reference")
        requests.drop("logits", "quotient")

    def end_loss(self, batch: Batch) -> None:
        """Compute what is logged of a loss of preferences, and let go of the logits that it holds."""
        requests = self._requests
        if self._pairs is not None and self._pairs.by_kernel:
            found = all_logits(self._spec, self._architecture, batch)
            copied = blocks(found.scored) if self._spec.recipe.facts.has_shifted_rows else NO_BLOCKS
            good = blocks(good_completions_bytes(self._spec, self._architecture, batch))
            requests.pass_through("work", [copied, plus(copied, good), NO_BLOCKS])
        requests.drop("held", "reference")

    def _outputs(self, found: AllLogits, rows: Hashable | None) -> None:
        """Compute the logits; accelerate casts what a model returns when that has ended."""
        requests, whole, converted = self._requests, blocks(found.whole), blocks(found.converted)
        requests.set("logits", converted or whole)
        self._cap(found, rows)
        requests.drop("work", *(("casts",) if self._spec.logprobs.ends_autocast else ()))
        if converted:
            requests.replace("logits", whole)

    def _cap(self, found: AllLogits, rows: Hashable | None) -> None:
        """Divide the logits, take the hyperbolic tangent, and multiply; with `rows` backward needs the tangent."""
        if not (capped := blocks(found.capped)):
            return
        requests = self._requests
        for _ in ("quotient", "tangent"):
            requests.replace("logits", capped)
        if rows is None:
            requests.replace("logits", capped)
        else:
            requests.rename("logits", (rows, "capped"))
            requests.set("logits", capped)

    def _select(self, found: AllLogits, rows: Hashable | None) -> None:
        """Compute the log-probability of each token of all logits; with `rows` they are kept for backward."""
        requests, selection = self._requests, self._spec.logprobs.selection
        row, cast = blocks(found.row), blocks(found.cast_row)
        kept = "quotient" if rows is None else (rows, "logits")
        if selection is not None and selection.by_kernel:
            requests.rename("logits", kept)
            return
        if self._pairs is not None and selection is None:
            requests.set("work", blocks(copy_bytes(found)) if self._pairs.at_once else NO_BLOCKS)
            requests.set(kept, blocks(found.scored))
            requests.drop("work")
            return
        if selection is not None and not selection.keeps_whole:
            # In float32 the quotient is what backward needs; else the log-softmax of each row.
            requests.set(kept if found.is_float32 else "quotient", blocks(found.scored))
            if not selection.keeps_outputs:
                requests.drop("logits")
        if selection is not None and found.is_float32:
            if selection.keeps_whole and rows is not None:
                requests.rename("logits", kept)
            requests.pass_through("work", [row, NO_BLOCKS])
            return
        for number in range(int(found.rows)):
            requests.set("work", cast)
            if rows is not None:
                requests.set(kept, times(row, number + 1))
            else:
                # Selected, that of the row before stays until this one is there.
                (requests.set if selection is None else requests.replace)("scores", row)
            requests.drop("work")
        requests.drop("scores")

    def _log_entropy(self, found: AllLogits, batch: Batch) -> None:
        """Compute the entropy of what is selected, which trl logs; rows of a slice are copied first."""
        requests, selection = self._requests, self._spec.logprobs.selection
        if selection is None or not selection.divides:
            return
        copied = blocks(copy_bytes(found)) if selection.in_place else NO_BLOCKS
        made = blocks(entropy_bytes(self._spec, self._architecture, batch))
        requests.pass_through("work", [copied, plus(copied, made), NO_BLOCKS])

    def _loss_of_labels(self, found: AllLogits, batch: Batch, rows: Hashable | None) -> None:
        """Compute transformers' loss of all logits, and what trl logs of them; without `rows` nothing is kept."""
        requests, labels = self._requests, self._spec.logprobs.label_loss
        assert labels is not None, "a loss of labels"
        whole, converted, wide = (blocks(size) for size in (found.whole, found.converted, found.in_float32))
        product = converted or whole
        requests.set("logits", product)
        requests.drop("copy of the head")
        self._cap(found, rows)
        if product != wide:
            requests.set("float32", wide)
        requests.set("scores" if rows is None else (rows, "logits"), wide)
        requests.drop("scores", "float32", "work", *(("casts",) if rows is None else ()))
        if converted:
            requests.replace("logits", whole)
        copy = blocks(copy_bytes(found))
        requests.set("copies", times(copy, labels.copies_in_entropy))
        if labels.has_entropy:
            requests.pass_through("work", [blocks(entropy_bytes(self._spec, self._architecture, batch)), NO_BLOCKS])
        if labels.copies_in_accuracy:
            # A copy for the entropy stays until this one is there.
            requests.replace("copies", copy)
        requests.drop("copies", "logits")

    # ---- backward ----------------------------------------------------------------------------------------------------

    def backward(self, batch: Batch, rows: Hashable, stream: Blocks, *, kept: Blocks = NO_BLOCKS) -> None:
        """Compute the gradients of some rows; those of the hidden states and of a trained head stay as ``work``.

        Args:
            batch: The rows.
            rows: The groups of what they keep.
            stream: The gradient of the hidden states.
            kept: What a fused head leaves as ``work``: the gradient of a tied one, which the embedding's is added to.
        """
        requests = self._requests
        if self._spec.logprobs.chunked_loss is not None:
            self._gradients_of_chunks(batch, rows)
            return
        if not self._all_at_once:
            scratch = head_backward_scratch(self._spec, self._architecture, batch)
            there, sums = blocks(scratch.activations.size), stages(scratch.gradients.size)
            # Of trl's head the sum of the weight's gradients is there before the logits of the first tile.
            first = [{max(each): 1} for each in sums[:1] if each and self._spec.logprobs.has_fused_head]
            requests.set("work", plus(there, *first))
            for logits in stages(scratch.logits.size):
                requests.set("work", plus(there, *first, logits))
                # The thread of backward has a workspace of its own from its first product on.
                requests.set("workspace of backward", self._workspace)
                for gradients in sums:
                    requests.set("work", plus(there, logits, gradients))
            requests.set("work", kept)
            return
        found = all_logits(self._spec, self._architecture, batch)
        selection = self._spec.logprobs.selection
        if self._spec.logprobs.label_loss is not None:
            self._gradients_of_labels(found, rows)
        elif self._pairs is not None and selection is None:
            self._gradients_at_once(found, rows)
        elif selection is not None and selection.by_kernel:
            requests.set("gradients", blocks(found.scored))
            requests.drop((rows, "logits"))
            self._gradients_of_quotient(found)
        elif selection is not None and found.is_float32:
            self._gradients_of_sums(found, rows)
        else:
            self._gradients_of_rows(found, rows)
            if selection is not None:
                self._gradients_of_quotient(found)
        self._through_the_product(found, rows, stream)

    def _compute_chunk(self, one: Chunk, *, again: bool = False) -> None:
        """Compute the log-softmax of a chunk, in ``scores``, and its entropy; `again` if backward does so."""
        requests, loss, wide = self._requests, self._spec.logprobs.chunked_loss, blocks(one.in_float32)
        assert loss is not None, "a loss in chunks"
        requests.set("copy of the head", plus(blocks(one.wide_head), blocks(one.cast_head)))
        requests.set("logits", blocks(one.product))
        requests.set("copy of the head", blocks(one.kept_head) if again else NO_BLOCKS)
        if not loss.widens_inputs:
            if one.product != one.logits:
                requests.replace("logits", blocks(one.logits))
        elif one.product != one.in_float32:
            requests.set("float32", wide)
        requests.set("scores", wide)
        requests.drop("float32")
        requests.pass_through("entropy", [times(wide, 2 if loss.runs_to_the_end or not again else 1), NO_BLOCKS])
        requests.drop("logits")

    def _gradients_of_chunks(self, batch: Batch, rows: Hashable) -> None:
        """Compute a chunk again, and its gradients, from the last to the first; autograd adds them up."""
        requests, spec, architecture = self._requests, self._spec, self._architecture
        count, last = chunks_of(batch), int(batch.scored_tokens - 1) % CHUNK_TOKENS + 1
        for number in range(min(count, _MOST_CHUNKS)):
            one = chunk_of(spec, architecture, batch, tokens=CHUNK_TOKENS if number else last)
            self._compute_chunk(one, again=True)
            requests.set("workspace of backward", self._workspace)
            requests.set("gradients", blocks(one.in_float32))
            requests.replace("gradients", blocks(one.in_float32))
            requests.drop("scores")
            if one.product != one.in_float32:
                requests.replace("gradients", blocks(one.product))
            if trains_everything(spec):
                self._gradient_of_a_chunk(one, is_second=number == 1)
            requests.drop("gradients", "copy of the head")
            if count > 1:
                # All rows are as long as those of all chunks, and added in place.
                requests.set("rows of chunks", times(blocks(one.rows), 2 if number else 1))
                requests.set("rows of chunks", blocks(one.rows))
        requests.drop("rows of chunks", "sum of chunks", (rows, "head"))

    def _gradient_of_a_chunk(self, one: Chunk, *, is_second: bool) -> None:
        """Compute the gradient of a trained head, in its type, and add it: if the sum is a view, to a third tensor."""
        requests, made = self._requests, blocks(one.own_gradient)
        requests.set("gradient of the head", blocks(one.gradient))
        requests.drop("copy of the head", "gradients")
        for wider in (one.wide_gradient, one.own_gradient):
            if blocks(wider) != requests.sizes("gradient of the head"):
                requests.replace("gradient of the head", blocks(wider))
        if not requests.has("sum of chunks"):
            requests.rename("gradient of the head", "sum of chunks")
        elif is_second and one.is_view:
            requests.replace("sum of chunks", made)
        requests.drop("gradient of the head")

    def _gradients_of_labels(self, found: AllLogits, rows: Hashable) -> None:
        """Compute the gradient of the negative log-likelihood, and that of the log-softmax."""
        requests, wide = self._requests, blocks(found.in_float32)
        requests.set("gradients", wide)
        requests.replace("gradients", wide)
        requests.drop((rows, "logits"))
        if wide != blocks(found.whole) and not found.converted:
            requests.replace("gradients", blocks(found.whole))

    def _gradients_at_once(self, found: AllLogits, rows: Hashable) -> None:
        """Compute the gradient of gather, that of the log-softmax of all logits, and that of their slice.

        A kernel makes the second alone.
        """
        requests, scored = self._requests, blocks(found.scored)
        requests.set("gradient of gather", scored if self._pairs is not None and self._pairs.at_once else NO_BLOCKS)
        requests.set("gradients", scored)
        requests.drop((rows, "logits"), "gradient of gather")
        requests.replace("gradients", blocks(found.whole))

    def _gradients_of_rows(self, found: AllLogits, rows: Hashable) -> None:
        """Compute those of the log-softmax of each row, from the last to the first, and their stack.

        Of each row: the gradient of gather, of the log-softmax, and if that is wider of the row.
        """
        requests, row = self._requests, blocks(found.row)
        one = blocks(found.scored // int(found.rows))
        for number in range(int(found.rows)):
            requests.set("gradient of gather", row)
            if found.cast_row:
                requests.set("wide gradient", row)
                requests.drop("gradient of gather")
            requests.set("gradients of rows", times(one, number + 1))
            requests.drop("gradient of gather", "wide gradient")
            requests.set((rows, "logits"), times(row, int(found.rows) - number - 1))
        requests.set("gradients", blocks(found.scored))
        requests.drop("gradients of rows")
        if self._spec.logprobs.selection is None:
            requests.replace("gradients", blocks(found.whole))

    def _gradients_of_sums(self, found: AllLogits, rows: Hashable) -> None:
        """Compute those of the log-sum-exp of each row, their stack, and the gradient of gather that is added to it."""
        requests, selection, row = self._requests, self._spec.logprobs.selection, blocks(found.row)
        assert selection is not None, "selected log-probabilities"
        scored, whole = blocks(found.scored), blocks(found.whole)
        for number in range(int(found.rows)):
            requests.set("work", times(row, 2))
            requests.set("gradients of rows", times(row, number + 1))
            requests.drop("work")
        requests.set("gradients", scored)
        requests.drop("gradients of rows")
        requests.set("gradient of gather", scored)
        requests.drop((rows, "logits"), "gradient of gather")
        if not selection.in_place:
            self._gradients_of_quotient(found)
            return
        # `CopySlices`: zeros that get the gradient; a copy of them; and of that a copy of the slice, and its quotient.
        requests.set("work", whole)
        requests.drop("gradients")
        requests.set("gradients", whole)
        requests.set("slice", scored)
        requests.pass_through("slice", [times(scored, 2), NO_BLOCKS])
        requests.drop("work")

    def _gradients_of_quotient(self, found: AllLogits) -> None:
        """Compute those of the division and of two slices, of which only the second makes the tensor longer.

        Of preferences, that of a slice if there is one.
        """
        if self._pairs is not None:
            if self._pairs.slices:
                self._requests.replace("gradients", blocks(found.whole))
            return
        for made in (found.scored, found.scored, found.whole):
            self._requests.replace("gradients", blocks(made))

    def _through_the_product(self, found: AllLogits, rows: Hashable, stream: Blocks) -> None:
        """Compute the gradients of the hidden states and of a trained head of those of the logits."""
        requests, spec = self._requests, self._spec
        if converted := blocks(found.converted):
            requests.replace("gradients", converted)
        if capped := blocks(found.capped):
            for _ in ("product", "tangent"):
                requests.replace("gradients", capped)
            requests.drop((rows, "capped"))
            requests.replace("gradients", capped)
        requests.set("workspace of backward", self._workspace)
        cast = blocks(head_cast_bytes(spec, self._architecture)) if trains_everything(spec) else NO_BLOCKS
        requests.set("work", plus(stream, cast or self._embedding))
        requests.drop("gradients", (rows, "head"))
        if cast:
            requests.set("work", plus(stream, cast, self._embedding))
        requests.drop("work")
