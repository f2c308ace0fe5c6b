"""Instants of a trial at which memory can peak, and what is there at each of them.

Instants of a trial at which memory can peak, as bytes by category.

The memory of an instant is the persistent memory plus what this instant adds. The peak is the largest instant: memory
that does not exist at the same time is never added up.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import StrEnum

from profiler.analytical.formulas.chunked_loss import head_gradient_is_view
from profiler.analytical.formulas.models.trained import (
    FLOAT32_BYTES,
    INT64_BYTES,
    all_gradients,
    element_bytes,
    outer_text,
    trainable_parameter_count,
    trained_element_bytes,
    trained_tensors,
    trains_everything,
)
from profiler.analytical.formulas.models.weights import (
    adapters,
    critic,
    critic_count,
    critic_tensors,
    reference,
    reward_models,
    weights,
)
from profiler.analytical.formulas.sizes.quantities import (
    NOTHING,
    UNNAMED,
    Coded,
    Count,
    Flag,
    HeadBytes,
    Term,
    Terms,
    both,
    chosen,
    everywhere,
    looked_up,
    where,
    whole_units,
)
from profiler.analytical.formulas.sizes.rounding import Block, block_of, exact
from profiler.analytical.formulas.sizes.trial_keys import Batch, DecoderShape, TrialKeys
from profiler.analytical.optimizers import optimizer_state, state_text
from profiler.domain.cards.card import cublas_workspace_bytes
from profiler.domain.cards.gpu import Gpu
from profiler.domain.cards.gpu_names import find_gpu
from profiler.domain.memory import Category, Phase
from profiler.domain.trials.trial import Logprobs


class InstantName(StrEnum):
    """The instants that are considered, in the order of a step."""

    READING = "a checkpoint is read"
    """Only of the host, as `SAVING`."""
    LOADED = "models and adapters are made"
    SHARDING = "the model is sharded"
    REPLICATED = "the model is sent to all GPUs"
    REWARD_LOADED = "reward models are on the GPU"
    ENGINE_START = "vLLM starts"
    GATHERING = "weights are gathered"
    SENDING = "weights go to the engine"
    ENGINE = "vLLM generates"
    POOL = "the rollout engine generates"
    PREFILL_TOWER = "prefill, in a block of the vision tower"
    PREFILL_INPUTS = "prefill, at the second inputs of layers"
    PREFILL = "prefill, in a layer's MLP"
    GROWTH = "the cache's last growth"
    DECODING = "the last token's attention"
    LAST_LOGITS = "the last token's logits"
    SAMPLING = "the last token is sampled"
    SCORE_TOWER = "scoring, in a block of the vision tower"
    SCORE_INPUTS = "scoring, at the second inputs of layers"
    SCORE_LAYER = "scoring, in a layer's MLP"
    SCORE_HEAD = "scoring, at the LM head"
    SCORE_LOSS = "scoring, after the model's forward"
    REWARD = "rewards on the host"
    REWARD_MODEL = "a reward model scores, in a layer's MLP"
    FORWARD_TOWER = "the forward of the vision tower's last block"
    VALUES = "the critic's values, in a layer's MLP"
    FORWARD_LAYER = "the last layer's forward"
    FORWARD_HEAD = "the head's forward and loss"
    LOGGING = "entropy and accuracy are logged"
    BACKWARD_HEAD = "the head's backward"
    BACKWARD_NORM = "the final norm's backward"
    BACKWARD_LAYER = "the last layer's backward"
    BACKWARD_INNER_LAYER = "an inner layer's backward"
    REDUCTION = "a full bucket of gradients is reduced"
    BACKWARD_FIRST_LAYER = "the first layer's backward"
    BACKWARD_TOWER = "the backward of the vision tower's last block"
    BACKWARD_FIRST_BLOCK = "the backward of the vision tower's first block"
    BACKWARD_INPUTS = "the backward of the second inputs of layers"
    BACKWARD_TIED = "the gradients of a tied embedding are added"
    BACKWARD_END = "the embedding's backward"
    STEP = "the optimizer's step"
    EVALUATION_ROLLOUT = "an evaluation generates"
    EVALUATION_REWARD = "an evaluation is rewarded"
    EVALUATION_LOSS = "the loss of an evaluation"
    SAVING = "weights are saved"


@dataclass(frozen=True, kw_only=True)
class Instant:
    """Memory at one instant."""

    phase: Phase
    name: InstantName
    terms: Terms
    """Bytes by category, with their words."""
    happens: Flag = True
    """False where a trial has no such instant."""

    @property
    def sizes(self) -> dict[Category, Count]:
        """The bytes by category."""
        return {category: term.size for category, term in self.terms.items()}

    @property
    def total_bytes(self) -> Count:
        """Sum of all categories; 0 where the instant does not happen."""
        return where(self.happens, sum([term.size for term in self.terms.values()]), 0)

    def words(self) -> dict[Category, str]:
        """Return the short form of each category that has bytes: its factors, in at most 50 characters.

        T is the number of tokens of a micro-batch, N of those that are scored, H the hidden size.
        """
        return {category: term.text for category, term in self.terms.items() if term.size}

    def with_terms(self, terms: Terms) -> "Instant":
        """Return the instant with `terms` in place of the same categories."""
        return Instant(phase=self.phase, name=self.name, terms={**self.terms, **terms}, happens=self.happens)


def head_categories(head: HeadBytes) -> Terms:
    """Return the bytes of the LM head by category."""
    return {
        Category.LOGITS: head.logits,
        Category.ACTIVATIONS: head.activations,
        Category.GRADIENTS: head.gradients,
    }


@dataclass(frozen=True, kw_only=True)
class Gradients:
    """The gradients of a backward."""

    every: Term
    """All `.grad`."""
    earlier: Term
    """Those at its start: of the earlier micro-batches, or rows."""
    are_buffered: bool = False
    """Whether autograd buffers those of earlier rows, to which it adds the gradient of a tied head in place."""

    @classmethod
    def of(cls, spec: TrialKeys, architecture: DecoderShape) -> "Gradients":
        """Return those of the largest backward of a step."""
        backwards = spec.gradient_accumulation_steps
        if spec.logprobs is Logprobs.MINIBATCH:
            backwards = backwards * spec.per_device_train_batch_size
        every = all_gradients(spec, architecture)
        return cls(every=every, earlier=every.only_if(backwards > 1))

    def after_a_row(self) -> "Gradients":
        """Return those of a later row: autograd buffers what the earlier rows made, as large as all `.grad`."""
        every, earlier = self.every, self.earlier

        def words() -> str:
            return f"2 x {every.words()}" if earlier.size else every.words()

        return Gradients(every=every, earlier=Term(earlier.size + every.size, words), are_buffered=True)

    def of_tied_head(self, spec: TrialKeys, architecture: DecoderShape) -> Term:
        """Return the gradient of a tied head that waits for the embedding's, if it is not added to an earlier row's."""
        head = Term(embedding_bytes(spec, architecture), lambda: "a tied head's")
        return head.only_if(False if self.are_buffered else architecture.tie_word_embeddings)

    def in_layers(self, made: Count, text: str = "those of later layers") -> Term:
        """Return the gradients in the middle of a backward: those that it has made, or all of earlier ones."""
        return chosen(self.earlier.size >= made, self.earlier, Term(made, lambda: text))

    def at_the_end(self, spec: TrialKeys, architecture: DecoderShape, batch: Batch) -> Term:
        """Return the gradients after the backward of the embedding.

        All `.grad`, the new gradient of the embedding if it is added to an earlier one, and that of a tied head, which
        waits for it. Autograd adds the new one to the waiting one in place, unless that is a view: then there is a
        third.
        """
        fresh = where(self.earlier.size > 0, embedding_bytes(spec, architecture), 0)
        waiting = self.of_tied_head(spec, architecture).size
        summed = where(head_gradient_is_view(spec, architecture, batch), waiting, 0)

        def words() -> str:
            tied = ", fresh and tied" if fresh else ", tied"
            return f"the embedding's{tied if waiting else ''}"

        whole = chosen(self.earlier.size > self.every.size, self.earlier, self.every)
        return whole.plus(Term(fresh + waiting + summed, words))


def embedding_bytes(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the gradient of the embedding, which a tied head has too; 0 with adapters."""
    if not trains_everything(spec):
        return 0
    return block_of(spec)(architecture.vocab_size * architecture.hidden_size * element_bytes(spec).outer)


@dataclass(frozen=True, kw_only=True)
class EarlierRows:
    """Rows whose forward is over and whose own backward waits."""

    rows: Count = 0
    saved: Terms = field(default_factory=dict)
    """What they keep."""

    def named(self, text: str, *only: Category) -> Terms:
        """Return what they keep with `text` as its words, or only those of some categories."""
        return {
            category: Term(term.size, (lambda: text) if not only or category in only else UNNAMED)
            for category, term in self.saved.items()
        }


NO_ROWS = EarlierRows()


_HOPPER = (9, 0)
_WORKSPACE_THREADS = 2


def workspace(gpu: str | Coded[str | None] | None, block: Block = exact) -> Term:
    """Return the cuBLAS workspaces of two threads, that of forward and that of backward.

    Without the name of a card, Hopper is assumed. By hand, an H100: 2 x 33,554,432 = 67,108,864 B.

    Source: `profiler.domain.cards.card`.
    """
    size = _WORKSPACE_THREADS * block(looked_up(gpu, _one_workspace_bytes))
    return Term(size, lambda: f"cuBLAS, {_WORKSPACE_THREADS} threads")


def _one_workspace_bytes(gpu: str | None) -> int:
    card = find_gpu(gpu)
    return cublas_workspace_bytes(card.compute_capability if card else _HOPPER)


def read_of_card(card: Gpu) -> Hashable:
    """Return what the closed form reads of a card without vLLM: workspaces of cuBLAS, and kernels of attention."""
    chip = card.chip
    return cublas_workspace_bytes(chip.compute_capability), chip.has_flash_attention, chip.has_cudnn_attention


def of_one_thread(both: Term) -> Term:
    """Return the workspace of forward alone, which is there before the first backward."""
    return Term(both.size // _WORKSPACE_THREADS, lambda: "cuBLAS, 1 thread")


def workspace_in_step(there: Term, scratch: Term) -> Term:
    """Return the workspaces and the scratch of an optimizer's step."""
    return Term(there.size + scratch.size, lambda: f"cuBLAS, and {scratch.text}" if scratch.size else there.words())


def generated_inputs(spec: TrialKeys) -> Term:
    """Return the inputs of a generation batch.

    Ids and masks as int64, twice (whole, and shuffled or joined), and float32 log-probabilities of a reference.

    By hand, 16 rows of 256 + 786 without reference: 16 x 1,042 x 8 x 4 = 533,504 B.
    """
    rows, block = spec.generation_batch_size, block_of(spec)
    prompts = block(rows * spec.max_prompt_length * INT64_BYTES)
    completions = block(rows * spec.max_completion_length * INT64_BYTES)
    scores = block(rows * spec.max_completion_length * FLOAT32_BYTES)
    size = 4 * (prompts + completions) + where(spec.beta != 0.0, scores, 0)
    return Term(size, lambda: inputs_text(rows))


def inputs_text(rows: Count) -> str:
    """Return the words of the inputs of rows that are generated."""
    return f"ids and masks of {rows} rows, as int64"


def models(spec: TrialKeys, architecture: DecoderShape) -> Terms:
    """Return policy, reference, critic and adapters."""
    return {
        Category.WEIGHTS: weights(spec, architecture),
        Category.REFERENCE: reference(spec, architecture),
        Category.CRITIC: critic(spec, architecture),
        Category.ADAPTERS: adapters(spec, architecture),
    }


def untied_head(spec: TrialKeys, architecture: DecoderShape) -> Term:
    """Return the LM head's own matrix while the model is built, before it is tied to the embedding.

    0 where it stays untied. By hand, qwen2.5-0.5b in bfloat16: 151,936 x 896 x 2 B = 272,269,312 B. Does not hold for a
    model that is loaded from a checkpoint with `low_cpu_mem_usage`, which never allocates a head that is tied.
    """
    head = block_of(spec)(architecture.vocab_size * architecture.hidden_size * element_bytes(spec).weight)
    return Term(head, lambda: "the LM head, before it is tied").only_if(architecture.tie_word_embeddings)


def state(spec: TrialKeys, architecture: DecoderShape) -> Term:
    """Return the optimizer's state after the first step: that of each tensor in its type."""
    tensors, block, sizes = trained_tensors(spec, architecture), block_of(spec), element_bytes(spec)
    found = optimizer_state(spec.optim, tensors, trained_element_bytes(spec), block)
    if not trains_everything(spec) or everywhere(sizes.outer == sizes.weight):
        return found
    outer = [group for group in tensors if group.is_outer]
    wide, narrow = (optimizer_state(spec.optim, outer, each, block).size for each in (sizes.outer, sizes.weight))
    return Term(
        found.size + wide - narrow, lambda: f"{found.words()}{outer_text(spec, tensors) if wide > narrow else ''}"
    )


def critic_state(spec: TrialKeys, architecture: DecoderShape) -> Term:
    """Return the state of the critic's optimizer after its first step; 0 without a critic."""
    if not spec.critic:
        return NOTHING
    return optimizer_state(spec.optim, critic_tensors(architecture), element_bytes(spec).weight, block_of(spec))


def both_states(spec: TrialKeys, architecture: DecoderShape, policy: Term) -> Term:
    """Return the states of both optimizers in the words of one; `policy` is its own where there is no critic."""
    critics = critic_state(spec, architecture)
    if not spec.critic:
        return policy

    def words() -> str:
        if not policy.size:
            return critics.words()
        count = trainable_parameter_count(spec, architecture) + critic_count(architecture)
        return state_text(spec.optim, count, element_bytes(spec).weight)

    return Term(policy.size + critics.size, words)


def persistent_memory(spec: TrialKeys, architecture: DecoderShape, *, inputs: Term) -> Terms:
    """Return the memory that is present at every instant after the first optimizer step.

    A trial of one step ends before its optimizer state is used again, so it has none here.

    Args:
        spec: The trial.
        architecture: Its model.
        inputs: The inputs of a step, which the recipe decides.
    """
    return {
        **models(spec, architecture),
        Category.REWARD_MODEL: reward_models(spec, architecture),
        Category.OPTIMIZER_STATE: state(spec, architecture).only_if(spec.steps > 1),
        Category.INPUTS: inputs,
        Category.WORKSPACE: workspace(spec.gpu, block_of(spec)),
    }


def persistent_at_rollout(spec: TrialKeys, persistent: Terms) -> Terms:
    """Return the persistent memory while completions are generated and scored.

    trl generates once per `steps_per_generation` micro-batches. A trial that ends before its second generation has no
    optimizer state in its only rollout, and no backward has allocated the workspace of the second thread yet. By hand,
    2 steps of 1 micro-batch and 2 micro-batches per generation: one rollout, so neither.

    Args:
        spec: The trial.
        persistent: The memory that is present after the first optimizer step.
    """
    accumulation, generation = spec.gradient_accumulation_steps, spec.steps_per_generation
    micro_batches = spec.steps * accumulation
    after_a_step = generation * whole_units(accumulation, generation)
    both_threads = persistent[Category.WORKSPACE]
    one_thread = of_one_thread(both_threads)
    return {
        **persistent,
        Category.OPTIMIZER_STATE: persistent[Category.OPTIMIZER_STATE].only_if(after_a_step < micro_batches),
        Category.WORKSPACE: chosen(generation < micro_batches, both_threads, one_thread),
    }


def unfinished_gradients(spec: TrialKeys, architecture: DecoderShape) -> Term:
    """Return the gradients during a rollout.

    There are some where trl generates in the middle of an accumulation: those of its earlier micro-batches.
    """
    accumulation, generation = spec.gradient_accumulation_steps, spec.steps_per_generation
    unfinished = both(generation % accumulation != 0, generation < spec.steps * accumulation)
    return all_gradients(spec, architecture).only_if(unfinished)
