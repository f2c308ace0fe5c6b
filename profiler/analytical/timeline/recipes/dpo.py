"""Instants of direct preference optimization: two rows per pair, and a reference that runs within the loss."""

from dataclasses import replace

from profiler.analytical.formulas.models.trained import FLOAT32_BYTES, INT64_BYTES, trains_everything
from profiler.analytical.formulas.sizes.quantities import UNNAMED, Count, Term, Terms, added, larger
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.trial_keys import Batch, DecoderShape, TrialKeys, is_padded, tokens_of
from profiler.analytical.timeline.instants import Instant, models, of_one_thread, persistent_memory, workspace
from profiler.analytical.timeline.step_instants import load_instants, optimizer_instant, scored_without_gradient
from profiler.analytical.timeline.training_pass import saved_by_forward, training_instants
from profiler.domain.memory import Category, Phase

_ROWS_OF_A_PAIR = 2
_INPUTS = 3
"""Ids, attention mask and completion mask."""


def dpo_instants(spec: TrialKeys, architecture: DecoderShape) -> tuple[Instant, ...]:
    """Return the instants of a trial of direct preference optimization, in the order of a step.

    The reference runs between forward and backward, while the policy keeps what its backward needs
    (`DPOTrainer._compute_loss` in trl 1.16); or before training, with the models alone.
    """
    batch = paired_micro_batch(spec)
    persistent = persistent_memory(spec, architecture, inputs=paired_inputs(spec))
    training = training_instants(spec, architecture, persistent, batch)
    before: tuple[Instant, ...] = ()
    within: tuple[Instant, ...] = ()
    if spec.precompute_ref_log_probs:
        before = _before_training(spec, architecture)
    else:
        within = _within_the_loss(spec, architecture, persistent, batch)
    return (
        *load_instants(spec, architecture),
        *before,
        *(instant for instant in training if instant.phase is Phase.FORWARD),
        *within,
        *(instant for instant in training if instant.phase is not Phase.FORWARD),
        optimizer_instant(spec, architecture, persistent),
    )


def paired_micro_batch(spec: TrialKeys) -> Batch:
    """Return the batch of one forward and backward pass."""
    return paired_rows(spec, spec.per_device_train_batch_size)


def paired_rows(spec: TrialKeys, pairs: Count) -> Batch:
    """Return the batch of the rows of `pairs`, of which the completions are scored.

    Rows are padded to the longest of all. The loss is a number per row: it keeps no tensor of every token.

    By hand, 2 pairs of ragged rows of at most 80 after prompts of 20: completions of 60 + 53 + 45 + 38 = 196 tokens.

    Source: `DataCollatorForPreference` in `trl/trainer/dpo_trainer.py` of trl 1.16; `add_fused_lm_head` in
    `trl/trainer/utils.py`, which scores the positions with a label.
    """
    rows, prompt = _ROWS_OF_A_PAIR * pairs, spec.max_prompt_length
    longest = larger((0 if spec.max_length is None else spec.max_length) - prompt, 1)
    return Batch(
        rows=rows,
        prompt_tokens=prompt,
        completion_tokens=longest,
        scored_tokens=tokens_of(spec, rows=rows, longest=longest),
        loss_tensors=0,
        has_mask=is_padded(spec, rows=rows, longest=longest),
    )


def paired_inputs(spec: TrialKeys) -> Term:
    """Return the rows of one optimizer step, as int64, and the float32 log-probabilities that were computed before.

    transformers loads all micro-batches of a step before the first forward (`Trainer.get_batch_samples`).

    By hand, 4 micro-batches of 2 pairs of 1,024: 4 x 3 x 4 x 1,024 x 8 = 393,216 B.
    """
    batch, micro_batches = paired_micro_batch(spec), spec.gradient_accumulation_steps
    size = micro_batches * _inputs_bytes(spec, batch)
    return Term(size, lambda: f"ids and masks of {batch.rows * micro_batches} rows, as int64")


def _inputs_bytes(spec: TrialKeys, batch: Batch) -> Count:
    """Return the bytes of one micro-batch."""
    block = block_of(spec)
    before = 2 * block(batch.rows // _ROWS_OF_A_PAIR * FLOAT32_BYTES) if spec.precompute_ref_log_probs else 0
    return _INPUTS * block(batch.positions * INT64_BYTES) + before


def _within_the_loss(
    spec: TrialKeys, architecture: DecoderShape, persistent: Terms, batch: Batch
) -> tuple[Instant, ...]:
    """Return the instants of the reference in a step, with what the policy keeps, and the labels of the loss.

    The reference saves nothing, and is not checkpointed (`disable_gradient_checkpointing`). A separate one has weights
    that require gradients, so autocast keeps their copies.
    """
    kept = dict(saved_by_forward(spec, architecture, persistent, batch))
    kept[Category.ACTIVATIONS] = Term(kept[Category.ACTIVATIONS].size, lambda: "kept")
    labels: Terms = {Category.INPUTS: Term(block_of(spec)(batch.positions * INT64_BYTES))}
    instants = scored_without_gradient(
        spec, architecture, added(kept, labels), batch, adapted=False, keeps_casts=trains_everything(spec)
    )
    return tuple(map(_with_named_logits, instants))


def _with_named_logits(instant: Instant) -> Instant:
    """Return an instant whose logits have a word where they are only what the policy keeps of its head."""
    logits = instant.terms.get(Category.LOGITS)
    if logits is None or logits.words is not UNNAMED:
        return instant
    return replace(instant, terms={**instant.terms, Category.LOGITS: Term(logits.size, lambda: "kept")})


def _before_training(spec: TrialKeys, architecture: DecoderShape) -> tuple[Instant, ...]:
    """Return the instants of the reference before training: the models, one batch, and the workspace of forward.

    The policy is the reference: in full fine-tuning as it is loaded, else without its adapter.

    Source: `DPOTrainer._precompute_ref_logps` in trl 1.16, which `__init__` calls.
    """
    pairs = spec.per_device_train_batch_size
    if spec.precompute_ref_batch_size is not None:
        pairs = spec.precompute_ref_batch_size
    batch = paired_rows(spec, pairs)
    alone: Terms = {
        **models(spec, architecture),
        Category.INPUTS: Term((_INPUTS + 1) * block_of(spec)(batch.positions * INT64_BYTES)),
        Category.WORKSPACE: of_one_thread(workspace(spec.gpu, block_of(spec))),
    }
    return scored_without_gradient(spec, architecture, alone, batch, adapted=False, keeps_casts=trains_everything(spec))
