"""Persistent memory, present at every instant: models, optimizer state, inputs, the workspaces of the libraries."""

from profiler.analytical.formulas.models.trained import (
    FLOAT32_BYTES,
    INT64_BYTES,
    all_gradients,
    element_bytes,
    trainable_parameter_count,
    trained_element_bytes,
    trained_tensors,
)
from profiler.analytical.formulas.models.value_models import critic, critic_count, critic_tensors, reward_models
from profiler.analytical.formulas.models.weights import adapters, reference, weights
from profiler.analytical.formulas.sizes.quantities import Coded, Count, both, looked_up, where, whole_units
from profiler.analytical.formulas.sizes.rounding import Block, block_of, exact
from profiler.analytical.formulas.sizes.term import NOTHING, Term, Terms, chosen
from profiler.analytical.formulas.sizes.trial_keys import DecoderShape, TrialKeys
from profiler.analytical.optimizers.optimizer_state import optimizer_state, state_text
from profiler.domain.cards.cublas import cublas_workspace_bytes
from profiler.domain.cards.gpu_names import find_gpu
from profiler.domain.memory import Category

_HOPPER = (9, 0)
_WORKSPACE_THREADS = 2


def workspace(gpu: str | Coded[str | None] | None, block: Block = exact) -> Term:
    """Return the cuBLAS workspaces of two threads, that of forward and that of backward.

    Without the name of a card, Hopper is assumed. By hand, an H100: 2 x 33,554,432 = 67,108,864 B.

    Source: `profiler.domain.cards.cublas`.
    """
    size = _WORKSPACE_THREADS * block(looked_up(gpu, _one_workspace_bytes))
    return Term(size, lambda: f"cuBLAS, {_WORKSPACE_THREADS} threads")


def _one_workspace_bytes(gpu: str | None) -> int:
    card = find_gpu(gpu)
    return cublas_workspace_bytes(card.compute_capability if card else _HOPPER)


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
    """Return the optimizer's state after the first step."""
    tensors = trained_tensors(spec, architecture)
    return optimizer_state(spec.optim, tensors, trained_element_bytes(spec), block_of(spec))


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
    one_thread = Term(both_threads.size // _WORKSPACE_THREADS, lambda: "cuBLAS, 1 thread")
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
