"""Instants of recipes on rows of a data set: no rollout. The facts of a recipe say what its rows and its steps have.

Supervised fine-tuning has neither a reference nor prompts, nor has a reward model, whose head scores a row. Preferences
have a reference that runs within the loss, while the policy keeps what its backward needs, or before training.
"""

from dataclasses import replace

from profiler.analytical.formulas.head import head_saved
from profiler.analytical.formulas.models.trained import FLOAT32_BYTES, INT64_BYTES, trains_everything, waiting_logits
from profiler.analytical.formulas.sizes.quantities import UNNAMED, Count, Term, Terms, added, larger
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.trial_keys import Batch, DecoderShape, TrialKeys, is_padded, tokens_of
from profiler.analytical.timeline.instants import (
    Gradients,
    Instant,
    head_categories,
    models,
    of_one_thread,
    persistent_memory,
    workspace,
)
from profiler.analytical.timeline.step_instants import load_instants, optimizer_instant, scored_without_gradient
from profiler.analytical.timeline.training_pass import final_norm, stack, training_instants, until_the_first_layer
from profiler.domain.memory import Category, Phase

_ROWS_OF_A_PAIR = 2
_LABELLED = "ids, masks and labels"


def _inputs(spec: TrialKeys) -> int:
    """Return the number of tensors of a micro-batch, int64.

    Ids and attention mask; with an LM head what is scored; and all of them again for the completions of neighbours.

    Source: the data collators in `trl/trainer/*_trainer.py` of trl 1.16.
    """
    facts = spec.recipe.facts
    return (3 if facts.has_lm_head else 2) * (2 if facts.has_shifted_rows else 1)


def single_pass_instants(spec: TrialKeys, architecture: DecoderShape) -> tuple[Instant, ...]:
    """Return the instants of a trial without a reference, in the order of a step: of SFT, or of a reward model."""
    persistent = persistent_memory(spec, architecture, inputs=data_inputs(spec))
    return (
        *load_instants(spec, architecture),
        *training_instants(spec, architecture, persistent, data_micro_batch(spec)),
        optimizer_instant(spec, architecture, persistent),
    )


def dpo_instants(spec: TrialKeys, architecture: DecoderShape) -> tuple[Instant, ...]:
    """Return the instants of a trial of direct preference optimization, in the order of a step.

    The reference runs between forward and backward, while the policy keeps what its backward needs
    (`DPOTrainer._compute_loss` in trl 1.16); or before training, with the models alone.
    """
    batch, persistent = data_micro_batch(spec), persistent_memory(spec, architecture, inputs=data_inputs(spec))
    training = training_instants(spec, architecture, persistent, batch)
    before = _before_training(spec, architecture) if spec.precompute_ref_log_probs else ()
    within = () if before else _within_the_loss(spec, architecture, persistent, batch)
    return (
        *load_instants(spec, architecture),
        *before,
        *(instant for instant in training if instant.phase is Phase.FORWARD),
        *within,
        *(instant for instant in training if instant.phase is not Phase.FORWARD),
        optimizer_instant(spec, architecture, persistent),
    )


def kto_instants(spec: TrialKeys, architecture: DecoderShape) -> tuple[Instant, ...]:
    """Return the instants of a trial of KTO: those of DPO, and the policy's own pass for the KL term.

    It is a batch as large as that of training, without gradient, before its forward (`KTOTrainer._compute_kl_logps` in
    trl 1.16). The reference has one too, as large as its other pass. The gradients of earlier micro-batches are there.
    """
    batch, persistent = data_micro_batch(spec), persistent_memory(spec, architecture, inputs=data_inputs(spec))
    earlier: Terms = {Category.GRADIENTS: Gradients.of(spec, architecture).earlier}
    waiting = added(persistent, earlier, _labels(spec, batch))
    return (*dpo_instants(spec, architecture), *scored_without_gradient(spec, architecture, waiting, batch))


def data_micro_batch(spec: TrialKeys) -> Batch:
    """Return the batch of one forward and backward pass."""
    return data_rows(spec, spec.per_device_train_batch_size)


def data_rows(spec: TrialKeys, examples: Count) -> Batch:
    """Return the batch of `examples` rows or pairs of the data set. Rows are padded to the longest of all.

    Of a prompt and a completion, the completion is scored. Of a row, every token has a label, and nothing predicts the
    first, so it counts as a prompt. The loss is a sum over positions or a number per row, which keeps no tensor.

    By hand, 4 ragged rows of at most 80: 80 + 70 + 60 + 50 = 260 tokens, of which 256 are scored. 2 pairs of at most 80
    after prompts of 20: completions of 60 + 53 + 45 + 38 = 196 tokens. With `of_prompts` all but the first count.

    Source: the data collators in `trl/trainer/*_trainer.py` of trl 1.16; `add_fused_lm_head` in `trl/trainer/utils.py`,
    which scores the positions with a label.
    """
    facts = spec.recipe.facts
    rows = examples * (1 if facts.rows_are_single else _ROWS_OF_A_PAIR)
    whole: Count = 0 if spec.max_length is None else spec.max_length
    longest = larger(whole - spec.max_prompt_length if facts.has_prompts else whole, 1)
    prompts, completions = (spec.max_prompt_length, longest) if facts.has_prompts else (1, longest - 1)
    if spec.logprobs.pair_loss is not None and spec.logprobs.pair_loss.of_prompts:
        prompts, completions = 1, larger(whole - 1, 1)
    return Batch(
        rows=rows,
        prompt_tokens=prompts,
        completion_tokens=completions,
        scored_tokens=tokens_of(spec, rows=rows, longest=longest) - (0 if facts.has_prompts else rows),
        loss_tensors=0,
        has_mask=is_padded(spec, rows=rows, longest=longest),
    )


def data_inputs(spec: TrialKeys) -> Term:
    """Return the rows of one optimizer step, as int64, and the float32 log-probabilities that were computed before.

    transformers loads all micro-batches of a step before the first forward (`Trainer.get_batch_samples`).

    By hand, SFT, 4 micro-batches of 4 rows of 1,024: 4 x 3 x 4 x 1,024 x 8 = 393,216 B. As much are 4 micro-batches of
    2 pairs of DPO, and two thirds of it those of a reward model.
    """
    batch, micro_batches = data_micro_batch(spec), spec.gradient_accumulation_steps
    size = micro_batches * _inputs_bytes(spec, batch)
    names = "ids and masks" if spec.recipe.facts.has_prompts or not spec.recipe.facts.has_lm_head else _LABELLED
    return Term(size, lambda: f"{names} of {batch.rows * micro_batches} rows, as int64")


def _inputs_bytes(spec: TrialKeys, batch: Batch) -> Count:
    """Return the bytes of one micro-batch. A reference has a number per row of a pair, or two per single row."""
    block = block_of(spec)
    numbers = 2 * block(spec.per_device_train_batch_size * FLOAT32_BYTES) if spec.precompute_ref_log_probs else 0
    return _inputs(spec) * block(batch.positions * INT64_BYTES) + numbers


def rows_with_inputs(spec: TrialKeys) -> tuple[Batch, Count]:
    """Return a micro-batch, and the bytes of its rows with the labels of its loss."""
    batch = data_micro_batch(spec)
    return batch, data_inputs(spec).size + _labels(spec, batch)[Category.INPUTS].size


def _labels(spec: TrialKeys, batch: Batch) -> Terms:
    """Return the labels of a loss of preferences: ids of which those of prompts are replaced."""
    labels = block_of(spec)(batch.positions * INT64_BYTES)
    return {Category.INPUTS: Term(labels if spec.recipe.facts.has_prompts else 0)}


def _within_the_loss(
    spec: TrialKeys, architecture: DecoderShape, persistent: Terms, batch: Batch
) -> tuple[Instant, ...]:
    """Return the instants of the reference in a step, with what the policy keeps, and the labels of the loss.

    The reference saves nothing, and is not checkpointed (`disable_gradient_checkpointing`). A separate one has weights
    that require gradients, so autocast keeps their copies; that of another program than trl has frozen ones.
    """
    kept = dict(_saved_by_forward(spec, architecture, persistent, batch))
    kept[Category.ACTIVATIONS] = Term(kept[Category.ACTIVATIONS].size, lambda: "kept")
    waiting = added(kept, _labels(spec, batch), {Category.LOGITS: Term(waiting_logits(spec, architecture, batch))})
    keeps_casts = trains_everything(spec) and spec.logprobs.pair_loss is None
    instants = scored_without_gradient(
        spec, architecture, waiting, batch, adapted=spec.ref_adapter, keeps_casts=keeps_casts
    )
    return tuple(map(_with_named_logits, instants))


def _with_named_logits(instant: Instant) -> Instant:
    """Return an instant whose logits have a word where they are only what the policy keeps of its head."""
    logits = instant.terms.get(Category.LOGITS)
    if logits is None or logits.words is not UNNAMED:
        return instant
    return replace(instant, terms={**instant.terms, Category.LOGITS: Term(logits.size, lambda: "kept")})


def precomputed_batch(spec: TrialKeys) -> Batch:
    """Return the batch of the reference before training: of training's rows, or of those of evaluations."""
    stated, rows = spec.precompute_ref_batch_size, spec.per_device_train_batch_size
    return data_rows(spec, larger(rows, spec.per_device_eval_batch_size or 0) if stated is None else stated)


def _before_training(spec: TrialKeys, architecture: DecoderShape) -> tuple[Instant, ...]:
    """Return the instants of the reference before training: the models, one batch, and the workspace of forward.

    The policy is the reference: in full fine-tuning as it is loaded, else without its adapter, or with its copy. Each
    three inputs have their labels.

    Source: `DPOTrainer._precompute_ref_logps` in trl 1.16, which `__init__` calls.
    """
    batch, inputs = precomputed_batch(spec), _inputs(spec)
    alone: Terms = {
        **models(spec, architecture),
        Category.INPUTS: Term(
            (inputs + inputs // 3) * block_of(spec)(batch.positions * INT64_BYTES),
            lambda: f"ids, masks and labels of {batch.rows} rows, as int64",
        ),
        Category.WORKSPACE: of_one_thread(workspace(spec.gpu, block_of(spec))),
    }
    keeps_casts = trains_everything(spec)
    return scored_without_gradient(spec, architecture, alone, batch, adapted=spec.ref_adapter, keeps_casts=keeps_casts)


def _saved_by_forward(spec: TrialKeys, architecture: DecoderShape, persistent: Terms, batch: Batch) -> Terms:
    """Return what is there between the forward and the backward of a micro-batch."""
    earlier, layers = Gradients.of(spec, architecture).earlier, stack(spec, architecture, batch)
    kept: Terms = {Category.GRADIENTS: earlier, Category.ACTIVATIONS: layers}
    of_norm, head = {Category.ACTIVATIONS: final_norm(spec, architecture, batch)}, head_saved(spec, architecture, batch)
    there = until_the_first_layer(spec, architecture, batch)
    return added(persistent, there, kept, head_categories(head), of_norm)
