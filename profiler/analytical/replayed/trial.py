"""Reserved memory of a trial by a replay: its passes and steps, and the peak of the segments that they take."""

from collections.abc import Hashable, Sequence
from dataclasses import replace

from profiler.allocator.model.card_memory import AllocatorStats
from profiler.analytical.formulas.layers.decoder_layer import layer_input_bytes
from profiler.analytical.formulas.layers.eager_attention import attention_mask_bytes
from profiler.analytical.formulas.models.parameters import model_of_recipe
from profiler.analytical.formulas.models.trained import all_gradients, trains_everything
from profiler.analytical.formulas.models.weights import (
    autocast_more_bytes,
    autocast_saved_bytes,
    autocast_scoring_bytes,
    head_cast_bytes,
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
from profiler.analytical.replayed.decoder.dense_decoder import DenseDecoder
from profiler.analytical.replayed.decoder.staged_decoder import Gradients, StagedDecoder
from profiler.analytical.replayed.generation import Rollouts
from profiler.analytical.replayed.head import Head
from profiler.analytical.replayed.layers import (
    all_layers,
)
from profiler.analytical.replayed.requests import (
    NO_BLOCKS,
    Requests,
    blocks,
    per_layer,
    times,
)
from profiler.analytical.replayed.zero import sharing_of
from profiler.analytical.timeline.instants import embedding_bytes, generated_inputs, of_one_thread, workspace
from profiler.analytical.timeline.optional_instants import as_evaluated, without_dropout
from profiler.analytical.timeline.recipes.of_data import data_inputs, data_micro_batch, data_rows, precomputed_batch
from profiler.analytical.timeline.recipes.registry import in_engine_type, of_one_gpu
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import SHARDED, ZERO_OF_WEIGHTS, DistributedType, Dtype, Logprobs, Rollout

_MOST_STEPS, _MOST_ROWS = 2, 2
"""Of each kind as many are replayed: the first, and one that finds what the first has left. The others repeat it."""


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


def replays_operations(spec: TrialKeys, architecture: DecoderShape) -> bool:
    """Return whether the layers of a trial with `has_replay` are replayed operation by operation when it trains."""
    program = Program(Requests(), spec, model_of_recipe(spec.recipe, architecture))
    return isinstance(program.decoder_of(program.trained_batch()), DenseDecoder)


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
        self._is_alone = shared.distributed_type is DistributedType.NO
        self._layers, self._block = all_layers(architecture), block_of(spec)
        self._checkpoints = bool(spec.gradient_checkpointing)
        self._decoders = self._decoders_of(spec, self._layers)
        without = all_layers(without_dropout(architecture))
        self._evaluated = without, self._decoders_of(as_evaluated(spec), without)
        self._trains_all = trains_everything(spec)
        self._head = Head(requests, spec, architecture)
        self._workspace = blocks(of_one_thread(workspace(spec.gpu, self._block)).size)
        has_rollout = spec.recipe.facts.has_rollout
        self._rollouts = Rollouts(requests, spec, architecture, self.sharing) if has_rollout else None
        self._grows = spec.rollout is Rollout.GENERATE

    def _decoders_of(self, spec: TrialKeys, layers: Sequence[DecoderShape]) -> tuple[DenseDecoder, StagedDecoder]:
        dense = DenseDecoder(self.requests, spec, layers)
        return dense, StagedDecoder(self.requests, spec, self._architecture, layers, self.sharing)

    def trained_batch(self) -> Batch:
        """Return the rows of a micro-batch."""
        return (data_micro_batch if self._rollouts is None else generated_micro_batch)(self._spec)

    def decoder_of(self, batch: Batch) -> DenseDecoder | StagedDecoder:
        """Return what runs the layers: operation by operation where their operations are known."""
        dense, staged = self._decoders
        return dense if dense.knows(batch) else staged

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
            # The last step has all that an earlier one has. With a loss in chunks one micro-batch is nearer to
            # simulations; why is not known.
            is_whole = self.sharing.is_whole_first and not (self._is_alone and spec.logprobs.chunked_loss is not None)
            several = step == steps[-1] or empties or is_whole
            micro = min(int(spec.gradient_accumulation_steps), self.sharing.most_micro_batches if several else 1)
            for number in range(micro):
                self.sharing.begin_pass(reduces=number == micro - 1)
                is_first = number == 0 or self.sharing.parts_gradients
                if self._rollouts is not None:
                    self._generate(self._rollouts, step, number)
                    self._train(self.trained_batch(), is_first=is_first, empties=empties)
                else:
                    self._train_on_rows(self.trained_batch(), is_first=is_first, empties=empties)
            self._update()
            if spec.per_device_eval_batch_size is not None:
                self._evaluate(data_rows(spec, spec.per_device_eval_batch_size))

    def _evaluate(self, batch: Batch) -> None:
        """Compute the loss of a batch of an evaluation, next to the rows of the last step; a reference needs less."""
        self._switch_evaluation()
        self.requests.set("evaluated", blocks(data_inputs(as_evaluated(self._spec)).size))
        self._score(batch, adapted=True)
        self.requests.drop("evaluated")
        self._switch_evaluation()

    def _switch_evaluation(self) -> None:
        """Exchange the layers of training and those of evaluation, which drop nothing."""
        (self._layers, self._decoders), self._evaluated = self._evaluated, (self._layers, self._decoders)

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
        self.decoder_of(batch).score(
            batch, adapted=adapted, after=lambda number: requests.set("casts", times(kept, number + 1))
        )
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
        cached = per_layer(blocks(autocast_more_bytes(spec, architecture, in_layer=True)), layers)

        def cast(number: int) -> None:
            """Request the copies of the weights of a layer, which autocast keeps or the layer saves."""
            group, each = ("casts", cached) if self._checkpoints else ((rows, "casts"), copies)
            requests.set(group, times(each, number + 1))

        self.sharing.begin(trains=True)
        self.decoder_of(batch).forward(batch, rows, after=cast)
        requests.set("casts", blocks(autocast_more_bytes(spec, architecture, in_layer=False)))
        self._head.forward(batch, rows)
        requests.drop("work", "casts")
        self.sharing.end()

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

        gradients = Gradients(
            requests,
            self.sharing.reduce,
            is_first=is_first,
            leaves=self.sharing.parts_gradients,
            buffers=buffers,
            is_last=is_last,
        )
        self._head.backward(batch, rows, stream, kept=embedding if is_tied else NO_BLOCKS)
        if is_tied:
            if requests.sizes("work") == embedding:
                requests.rename("work", "gradient of a tied head")
            requests.set("gradient of a tied head", embedding)
        elif not architecture.scores:
            gradients.add("head", embedding)
        requests.drop((rows, "head"))
        copies = per_layer(blocks(autocast_saved_bytes(spec, architecture)), len(self._layers))
        self.decoder_of(batch).backward(
            batch, rows, gradients, after=lambda number: requests.set((rows, "casts"), times(copies, number))
        )
        requests.drop("work")
        if is_tied and self._is_alone:
            self._join_tied(embedding, gradients)
        else:
            gradients.add("embedding", embedding)
        requests.drop("gradient of a tied head", (rows, "mask"), (rows, "casts"))
        if not self._trains_all and is_first:
            self.sharing.keep_adapters(blocks(all_gradients(spec, architecture).size))

    def _join_tied(self, embedding: Blocks, gradients: Gradients) -> None:
        """Add the gradient of the embeddings to that of a tied head: in its place, unless that is a view of a product.

        So it is where torch's product makes logits, all at once or in chunks, of a head that is not cast.
        """
        requests, spec = self.requests, self._spec
        requests.set("gradient of embeddings", embedding)
        if not (spec.logprobs.has_fused_head or head_cast_bytes(spec, self._architecture)):
            requests.replace("gradient of a tied head", embedding)
        requests.drop("gradient of embeddings")
        if (group := gradients.group_of("embedding")) is not None:
            requests.rename("gradient of a tied head", group)
        requests.drop("gradient of a tied head")
        gradients.end("embedding")

    def _update(self) -> None:
        """Run the optimizer, and drop the gradients."""
        self.sharing.update()
        layers = range(len(self._layers))
        self.requests.drop(*(("gradients", weights) for weights in (*layers, "head", "embedding", "adapters")))
