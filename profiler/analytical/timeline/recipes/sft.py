"""Instants of supervised fine-tuning: no rollout, no score, no reward, and no reference model."""

from profiler.analytical.formulas.models.trained import INT64_BYTES
from profiler.analytical.formulas.sizes.quantities import Term, larger
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.trial_keys import Batch, DecoderShape, TrialKeys, is_padded, tokens_of
from profiler.analytical.timeline.instants import Instant, persistent_memory
from profiler.analytical.timeline.step_instants import load_instants, optimizer_instant
from profiler.analytical.timeline.training_pass import training_instants

_INPUTS = 3
"""Ids, attention mask and labels."""


def sft_instants(spec: TrialKeys, architecture: DecoderShape) -> tuple[Instant, ...]:
    """Return the instants of a trial of supervised fine-tuning, in the order of a step."""
    batch = labelled_rows(spec)
    persistent = persistent_memory(spec, architecture, inputs=labelled_inputs(spec))
    return (
        *load_instants(spec, architecture),
        *training_instants(spec, architecture, persistent, batch),
        optimizer_instant(spec, architecture, persistent),
    )


def labelled_rows(spec: TrialKeys) -> Batch:
    """Return a micro-batch of rows whose tokens all have a label.

    Nothing predicts the first token of a row, so it counts as a prompt. The loss is a sum over positions, which keeps
    no tensor.

    By hand, 4 ragged rows of at most 80: 80 + 70 + 60 + 50 = 260 tokens, of which 256 are scored.
    """
    rows, longest = spec.per_device_train_batch_size, larger(0 if spec.max_length is None else spec.max_length, 1)
    return Batch(
        rows=rows,
        prompt_tokens=1,
        completion_tokens=longest - 1,
        scored_tokens=tokens_of(spec, rows=rows, longest=longest) - rows,
        loss_tensors=0,
        has_mask=is_padded(spec, rows=rows, longest=longest),
    )


def labelled_inputs(spec: TrialKeys) -> Term:
    """Return the rows of one optimizer step, as int64.

    transformers loads all micro-batches of a step before the first forward (`Trainer.get_batch_samples`).

    By hand, 4 micro-batches of 4 rows of 1,024: 4 x 3 x 4 x 1,024 x 8 = 393,216 B.
    """
    batch, micro_batches = labelled_rows(spec), spec.gradient_accumulation_steps
    size = micro_batches * _INPUTS * block_of(spec)(batch.positions * INT64_BYTES)
    return Term(size, lambda: f"ids, masks and labels of {batch.rows * micro_batches} rows, as int64")
