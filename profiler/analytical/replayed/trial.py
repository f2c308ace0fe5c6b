"""Reserved memory of a trial by a replay: its passes and steps, and the peak of the segments that they take."""

from collections.abc import Hashable
from dataclasses import replace

from profiler.allocator.model.card_memory import AllocatorStats
from profiler.analytical.formulas.layers.decoder_layer import layer_input_bytes
from profiler.analytical.formulas.layers.eager_attention import attention_mask_bytes
from profiler.analytical.formulas.layers.layer_backward import norm_backward
from profiler.analytical.formulas.models.parameters import model_of_recipe
from profiler.analytical.formulas.models.trained import all_gradients, trains_everything
from profiler.analytical.formulas.models.weights import (
    autocast_more_bytes,
    autocast_saved_bytes,
    autocast_scoring_bytes,
)
from profiler.analytical.formulas.sizes.quantities import Blocks, whole_units
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.trial_keys import (
    Batch,
    DecoderShape,
    TrialKeys,
    generated_micro_batch,
    itemised_keys,
    longest_rows,
    one_row,
    tokens_of,
    unpadded,
)
from profiler.analytical.replayed.generation import Rollouts
from profiler.analytical.replayed.head import Head
from profiler.analytical.replayed.layers import (
    Forward,
    KnownLayers,
    Saved,
    all_layers,
    loop_blocks,
)
from profiler.analytical.replayed.requests import (
    NO_BLOCKS,
    Requests,
    blocks,
    minus,
    others,
    per_layer,
    plus,
    times,
)
from profiler.analytical.replayed.zero import sharing_of
from profiler.analytical.timeline.instants import embedding_bytes, generated_inputs, of_one_thread, workspace
from profiler.analytical.timeline.optional_instants import as_evaluated, without_dropout
from profiler.analytical.timeline.recipes.of_data import data_inputs, data_micro_batch, data_rows, precomputed_batch
from profiler.analytical.timeline.recipes.registry import in_engine_type, of_one_gpu
from profiler.analytical.timeline.training_pass import final_norm
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import SHARDED, ZERO_OF_WEIGHTS, DistributedType, Dtype, Logprobs, Rollout

_MOST_STEPS, _MOST_ROWS = 2, 2
"""Of each kind as many are replayed: the first, and one that finds what the first has left. The others repeat it."""
_SCORED_LAYERS = 3
"""Layers of a forward that saves nothing: the later ones repeat them."""


def has_replay(spec: TrialKeys) -> bool:
    """Return whether the requests of a trial are known: of text, with rollouts by transformers if any.

    Of DeepSpeed those of stage 3, and of stages 1 and 2 of models that it need not cast, with torch's layers and losses
    of trl. None where FSDP or DeepSpeed has a reference that scores before training, or a row has several GPUs.
    """
    is_known_zero = spec.zero_stage == ZERO_OF_WEIGHTS or (spec.zero_stage in (1, 2) and spec.dtype is Dtype.BFLOAT16)
    is_known_zero = is_known_zero and spec.logprobs.is_of_trl and not spec.use_liger_kernel
    return (
        (spec.distributed_type is not DistributedType.DEEPSPEED or is_known_zero)
        and not (spec.precompute_ref_log_probs and spec.distributed_type in SHARDED)
        and spec.cp_size in (None, 1)
        and not (spec.use_vllm or spec.critic or spec.reward_models or spec.images_per_prompt)
        and (spec.per_device_eval_batch_size is None or not spec.recipe.facts.has_rollout)
    )


def replayed_counters(spec: TrialKeys, architecture: DecoderShape) -> AllocatorStats:
    """Return the counters, and so the peaks, of what the allocator takes for a trial on a card that is large enough.

    The formulas of the closed form say the size of each tensor, here one by one (`Itemised`), and the program of the
    trainer their order. The model of the allocator takes the segments.

    Args:
        spec: A trial with `has_replay`.
        architecture: Its model.
    """
    return program_of(spec, architecture).sharing.counters(str(spec.alloc_conf))


def program_of(spec: TrialKeys, architecture: DecoderShape) -> "Program":
    """Return the program of a trial with `has_replay`, whose `requests` and frees are made."""
    program = Program(Requests(), spec, model_of_recipe(spec.recipe, architecture))
    program.run()
    return program


def replayed_steps(steps: int, empties: int | None) -> list[int]:
    """Return the optimizer steps that are replayed: the first two, and the next that empties the allocator's cache.

    By hand, of 5 steps: 0 and 1; with `torch_empty_cache_steps=3`, which empties it in the steps 0 and 3, 3 as well.
    """
    first = list(range(min(steps, _MOST_STEPS)))
    if empties is None:
        return first
    later = empties * -(-_MOST_STEPS // empties)
    return [*first, later] if later < steps else first


class Program:
    """The program of a trial."""

    def __init__(self, requests: Requests, spec: TrialKeys, architecture: DecoderShape) -> None:
        shared, spec = spec, itemised_keys(of_one_gpu(in_engine_type(spec)))
        self.requests, self._spec, self._architecture = requests, spec, architecture
        self.sharing = sharing_of(requests, spec, architecture, shared=shared)
        self._layers, self._block = all_layers(architecture), block_of(spec)
        self._known, self._checkpoints = KnownLayers(spec, architecture), spec.gradient_checkpointing
        self._evaluated = all_layers(without_dropout(architecture)), KnownLayers(as_evaluated(spec), architecture)
        self._trains_all = trains_everything(spec)
        self._head = Head(requests, spec, architecture)
        self._workspace = blocks(of_one_thread(workspace(spec.gpu, self._block)).size)
        has_rollout = spec.recipe.facts.has_rollout
        self._rollouts = Rollouts(requests, spec, architecture, self.sharing) if has_rollout else None
        self._grows = spec.rollout is Rollout.GENERATE

    def run(self) -> None:
        """Request and free everything."""
        requests, spec = self.requests, self._spec
        self.sharing.load()
        if spec.recipe.facts.has_reference_pass and spec.precompute_ref_log_probs:
            requests.set("workspace of forward", self._workspace)
            for _ in range(self.sharing.most_micro_batches):
                self._score(precomputed_batch(spec), adapted=spec.ref_adapter)
        # The trainer of transformers does so before the first step (`Accelerator.free_memory`).
        self.sharing.empty_cache()
        self.sharing.share()
        requests.set("workspace of forward", self._workspace)
        every = spec.torch_empty_cache_steps
        steps = replayed_steps(int(spec.steps), every)
        for step in steps:
            empties = every is not None and step % every == 0
            # The last step has all that an earlier one has.
            several = step == steps[-1] or empties or self.sharing.is_whole_first
            micro = min(int(spec.gradient_accumulation_steps), self.sharing.most_micro_batches if several else 1)
            for number in range(micro):
                self.sharing.begin_pass(reduces=number == micro - 1)
                is_first = number == 0 or self.sharing.parts_gradients
                if self._rollouts is not None:
                    self._generate(self._rollouts, step, number)
                    self._train(generated_micro_batch(spec), is_first=is_first, empties=empties)
                else:
                    self._train_on_rows(data_micro_batch(spec), is_first=is_first, empties=empties)
            self._update()
            if spec.per_device_eval_batch_size is not None:
                self._evaluate(data_rows(spec, spec.per_device_eval_batch_size))

    def _evaluate(self, batch: Batch) -> None:
        """Compute the loss of a batch of an evaluation, next to the rows of the last step; a reference needs less."""
        (self._layers, self._known), self._evaluated = self._evaluated, (self._layers, self._known)
        self.requests.set("evaluated", blocks(data_inputs(as_evaluated(self._spec)).size))
        self._score(batch, adapted=True)
        self.requests.drop("evaluated")
        (self._layers, self._known), self._evaluated = self._evaluated, (self._layers, self._known)

    def _generate(self, rollouts: Rollouts, step: int, number: int) -> None:
        """Generate and score completions, if a micro-batch is the first of its generation."""
        requests, spec = self.requests, self._spec
        accumulation, generation = int(spec.gradient_accumulation_steps), int(spec.steps_per_generation)
        if (step * accumulation + number) % generation:
            return
        requests.drop("inputs")
        requests.set("inputs", blocks(generated_inputs(spec).size))
        rollouts.run(grows=self._grows)
        # Later rollouts find the segments of the first.
        self._grows = False
        is_old = spec.recipe is Recipe.RLOO or accumulation % generation != 0
        batch = generated_micro_batch(spec)
        rows = [batch] * self.sharing.scored_batches
        if spec.logprobs is Logprobs.SLICED:
            rows = [one_row(batch), unpadded(one_row(batch))][: min(int(batch.rows), _MOST_ROWS)]
        passes = [is_old or spec.ref_adapter] if spec.beta or is_old else []
        if is_old and spec.beta and not spec.ref_adapter and self.sharing.gathers_reference:
            passes.append(False)
        for adapted in passes:
            for each in rows:
                self._score(each, adapted=adapted)

    def _train_on_rows(self, batch: Batch, *, is_first: bool, empties: bool) -> None:
        """Run a micro-batch of a data set; within the loss the reference runs, next to what the policy keeps.

        For a KL term, the policy has a pass before that, or in LLaMA-Factory after, and the reference another one.
        """
        spec, facts, pairs = self._spec, self._spec.recipe.facts, self._spec.logprobs.pair_loss
        comes_last = facts.has_shifted_rows and pairs is not None and pairs.at_once
        self.requests.set("inputs", blocks(data_inputs(spec).size))
        if facts.has_shifted_rows and not comes_last:
            self._score(batch, adapted=True)
        self._forward(batch, "rows")
        if comes_last:
            self._score(batch, adapted=True)
        if facts.has_reference_pass and not spec.precompute_ref_log_probs:
            for ends in (False, True) if facts.has_shifted_rows else (True,):
                holds = pairs is not None and (pairs.by_kernel if ends else pairs.at_once)
                self._score(batch, adapted=spec.ref_adapter, holds=holds)
        self._head.end_loss(batch)
        if empties:
            self.sharing.empty_cache()
        self._backward(batch, "rows", is_first=is_first)

    def _score(self, batch: Batch, *, adapted: bool, holds: bool = False) -> None:
        """Compute log-probabilities of the policy, or without adapters of the reference; see `forward_alone`."""
        requests, spec, architecture = self.requests, self._spec, self._architecture
        # The weights of a separate reference of trl require gradients, so autocast keeps their copies.
        keeps = adapted or (self._trains_all and spec.logprobs.pair_loss is None)
        casts = blocks(autocast_scoring_bytes(spec, architecture)) if keeps else NO_BLOCKS
        requests.set("mask", blocks(attention_mask_bytes(spec, architecture, batch)))
        kept = per_layer(casts, len(self._layers))
        self.sharing.begin(adapted=adapted)
        for number, kind in enumerate(self._layers):
            if self._is_replayed(number):
                self.sharing.enter(number)
                forward = self._known.forward_of(kind, batch, adapted=adapted)
                requests.pass_through("work", forward.before)
                requests.set("casts", times(kept, number + 1))
                forward.attend(requests)
                self.sharing.leave(number)
        requests.set("casts", casts)
        self.sharing.enter_head()
        self._head.forward_alone(batch, holds=holds)
        self.sharing.end()
        requests.drop("mask", "casts")

    def _train(self, batch: Batch, *, is_first: bool, empties: bool) -> None:
        """Run forward and backward of one micro-batch, in the rows that log-probabilities are computed in."""
        spec = self._spec
        if spec.logprobs is Logprobs.SLICED:
            longest = int(longest_rows(spec, batch.rows)) if batch.has_mask else int(batch.rows)
            padded = self._average_row(batch)
            rows = [unpadded(one_row(batch))] * longest + [padded] * (int(batch.rows) - longest)
            for number, row in enumerate(rows):
                self._forward(row, ("row", number))
            if empties:
                self.sharing.empty_cache()
            for number in reversed(range(len(rows))):
                is_last, is_new = number == 0, is_first and number == len(rows) - 1
                self._backward(rows[number], ("row", number), is_first=is_new, buffers=not is_first, is_last=is_last)
            return
        rows = [batch]
        if spec.logprobs is Logprobs.MINIBATCH:
            rows = [self._average_row(batch), unpadded(one_row(batch))][-min(int(batch.rows), _MOST_ROWS) :]
        for number, row in enumerate(rows):
            self._forward(row, "rows")
            if empties and number == len(rows) - 1:
                self.sharing.empty_cache()
            self._backward(row, "rows", is_first=is_first and number == 0)

    def _average_row(self, batch: Batch) -> Batch:
        """Return one padded row, of which as many tokens are scored as of an average row of the generation batch."""
        generated = self._spec.generation_batch_size
        tokens = tokens_of(self._spec, rows=generated, longest=batch.completion_tokens)
        return replace(one_row(batch), scored_tokens=whole_units(tokens, generated))

    def _forward(self, batch: Batch, rows: Hashable) -> None:
        requests, spec, architecture = self.requests, self._spec, self._architecture
        layers = len(self._layers)
        requests.set((rows, "mask"), blocks(attention_mask_bytes(spec, architecture, batch)))
        copies = per_layer(blocks(autocast_saved_bytes(spec, architecture)), layers)
        more = blocks(autocast_more_bytes(spec, architecture, in_layer=True))
        cached, one_copy = per_layer(more, layers), others(more, layers)
        self.sharing.begin(trains=True)
        for number, kind in enumerate(self._layers):
            self.sharing.enter(number)
            forward = self._known.forward_of(kind, batch, adapted=True)
            if self._checkpoints:
                requests.set((rows, number), self._known.input_of(kind, batch, number))
                loop = loop_blocks(spec, kind, batch)

                def less(stage: Blocks, loop: Blocks = loop) -> Blocks:
                    return plus(minus(stage, loop), one_copy)

                if self._is_replayed(number):
                    requests.pass_through("work", map(less, forward.before))
                    forward.attend(requests, less=less)
                requests.set("casts", times(cached, number + 1))
            else:
                self._saving_layer(forward, self._known.saved_of(kind, batch, number), (rows, number))
                requests.set((rows, "casts"), times(copies, number + 1))
            self.sharing.leave(number)
        self.sharing.enter_head()
        requests.set((rows, "norm"), blocks(final_norm(spec, architecture, batch).size))
        requests.set("casts", blocks(autocast_more_bytes(spec, architecture, in_layer=False)))
        self._head.forward(batch, rows)
        requests.drop("work", "casts")
        self.sharing.end()

    def _saving_layer(self, forward: Forward, saved: Saved, group: tuple[Hashable, int]) -> None:
        """Run the forward of a layer that keeps what its backward needs."""
        requests, until = self.requests, saved.until_attention
        later = plus(minus(saved.all, until), saved.inputs)
        requests.pass_through("work", [minus(stage, until) for stage in forward.before])
        requests.set(group, until)
        requests.pass_through("work", [minus(stage, until) for stage in forward.attention])
        requests.pass_through((*group, "scores") if saved.scores else "scores", saved.scores or forward.scores)
        requests.pass_through("work", [minus(stage, later) for stage in forward.after])
        requests.drop("scores")
        requests.set(group, saved.all)

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
        requests, spec, architecture = self.requests, self._spec, self._architecture
        embedding = blocks(embedding_bytes(spec, architecture))
        is_tied = bool(architecture.tie_word_embeddings)
        stream = blocks(layer_input_bytes(spec, architecture, batch))

        def add(weights: Hashable, made: Blocks) -> None:
            """Make gradients of some weights."""
            if is_first:
                if not self.sharing.parts_gradients:
                    requests.set(("gradients", weights), made)
            elif buffers and not requests.has(("buffer", weights)):
                requests.set(("buffer", weights), made)
            else:
                requests.pass_through("new gradients", [made, NO_BLOCKS])
            if is_last:
                requests.drop(("buffer", weights))
                self.sharing.reduce(weights)

        self._head.backward(batch, rows, stream, kept=embedding if is_tied else NO_BLOCKS)
        if is_tied:
            if requests.sizes("work") == embedding:
                requests.rename("work", "gradient of a tied head")
            requests.set("gradient of a tied head", embedding)
        elif not architecture.scores:
            add("head", embedding)
        requests.drop((rows, "head"))
        requests.set("work", plus(stream, blocks(norm_backward(spec, architecture, batch).size)))
        requests.drop((rows, "norm"))
        copies = per_layer(blocks(autocast_saved_bytes(spec, architecture)), len(self._layers))
        for number in reversed(range(len(self._layers))):
            self.sharing.enter_backward(number)
            self._layer_backward(batch, rows, number)
            if copies:
                requests.set((rows, "casts"), times(copies, number))
            backward = self._known.backward_of(self._layers[number], batch)
            requests.pass_through("work", backward.norm)
            add(number, backward.gradients)
            self.sharing.leave_backward(number)
        requests.drop("work")
        add("embedding", embedding)
        requests.drop("gradient of a tied head", (rows, "mask"), (rows, "casts"))
        if not self._trains_all and is_first:
            self.sharing.keep_adapters(blocks(all_gradients(spec, architecture).size))

    def _layer_backward(self, batch: Batch, rows: Hashable, number: int) -> None:
        """Run the backward of a layer, but for its first norm; what it saved goes."""
        requests, kind = self.requests, self._layers[number]
        if self._checkpoints and not self._trains_all and not self._is_replayed(number):
            requests.drop((rows, number))
            return
        backward, saved = self._known.backward_of(kind, batch), self._known.saved_of(kind, batch, number)
        kept = NO_BLOCKS if self._checkpoints else requests.sizes((rows, number))
        scores = (rows, number, "scores")
        if backward.recomputed is not None:
            requests.pass_through("work", backward.recomputed.before)
            backward.recomputed.attend(requests, kept=scores)
        requests.pass_through("work", [minus(stage, kept) for stage in backward.mlp])
        if not self._checkpoints:
            left = {size: min(count, saved.until_attention.get(size, 0)) for size, count in kept.items()}
            requests.set((rows, number), {size: count for size, count in left.items() if count})
            kept = requests.sizes((rows, number))
        requests.pass_through("work", [minus(stage, kept) for stage in backward.attention])
        requests.pass_through(scores, backward.scores if requests.has(scores) else ())
        requests.pass_through("work", [minus(stage, kept) for stage in backward.heads])
        requests.drop((rows, number))

    def _update(self) -> None:
        """Run the optimizer, and drop the gradients."""
        self.sharing.update()
        layers = range(len(self._layers))
        self.requests.drop(*(("gradients", weights) for weights in (*layers, "head", "embedding", "adapters")))

    def _is_replayed(self, number: int) -> bool:
        """Return whether the stages of a layer that leaves nothing, or one tensor, are replayed."""
        last, kind = len(self._layers) - 1, self._layers[number]
        is_new = number == 0 or kind is not self._layers[number - 1]
        return number < _SCORED_LAYERS or number > last - _SCORED_LAYERS or is_new
