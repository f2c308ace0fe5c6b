"""Preferences with a reference: what `DPOTrainer` and `KTOTrainer` need of a trial, their rows, and their phases.

Seams, each checked by a test: `compute_loss` of trl's trainers, `create_model_from_path` and `hash_module` in their
modules; others are in `announced_steps.py`.

Findings in trl 1.16 (`trl/trainer/dpo_trainer.py`, `kto_trainer.py` and their configurations):

- A pair is two rows, prompt and completion each. The chosen rows and then the rejected ones are one batch of one
  forward, padded to the longest of all (`DataCollatorForPreference`). `max_length` cuts prompt and completion together.
- The fused LM head scores the completions only (`completion_mask`). No logits of all tokens exist, neither of the
  policy nor of the reference. Up to 1.14 both had those of every token, prompts included.
- The reference runs within the loss, after the forward of the policy, whose saved activations wait meanwhile. It is
  another model in full fine-tuning, and with an adapter the policy with the adapter switched off. It saves nothing.
- `precompute_ref_log_probs` runs the reference over all rows while the trainer is made. In full fine-tuning it is the
  policy itself, so that there never is a second model. `precompute_ref_batch_size` null is that of training.
- `padding_free` is switched off with a warning. `use_liger_kernel` replaces layers, and the loss stays as it is.
  `loss_type`, `f_divergence_type`, `label_smoothing` and `loss_weights` decide over a number per row, others per token.
- `disable_dropout` is on, so that adapters drop nothing. Here it is off where the trial states a `lora_dropout`.
- KTO has single completions with a label, good or not. Its default loss, `kto`, compares with the KL term of a batch,
  which is that of each prompt with the completion of its neighbour: a second batch of the same size, which the policy
  runs without gradient before its own, and the reference before its own. `loss_type=apo_zero_unpaired` has none.
  Then a batch has at least two rows, in the order of the data set. A reference before training runs both batches.
"""

from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer
from trl.trainer import dpo_trainer, kto_trainer

from profiler.domain.errors import Fault, UsageError
from profiler.domain.memory import Phase
from profiler.domain.trials.trial import RowLengths, TrialSpec, Weights
from profiler.seams.patching import patched
from profiler.training.announced_steps import AnnouncedReference
from profiler.training.arguments import arguments_of_rows
from profiler.training.data.source_data import (
    load_rows,
    missing_column,
    repeated,
    rows_needed,
    sequence_length,
    synthetic_prompts,
    synthetic_rows,
)
from profiler.training.models.model import reference_from_config
from profiler.training.placement import Session
from profiler.training.recipes.recipe import TrainerParts

_PROMPT, _CHOSEN, _REJECTED, _COMPLETION, _LABEL = "prompt", "chosen", "rejected", "completion", "label"


class ProfiledDPOTrainer(AnnouncedReference, DPOTrainer):
    """A `DPOTrainer` that announces its phases to `observer`."""


class ProfiledKTOTrainer(AnnouncedReference, KTOTrainer):
    """A `KTOTrainer` that announces its phases to `observer`."""


def build_pairs(spec: TrialSpec, tokenizer: Any, lengths: RowLengths | None = None) -> Dataset:
    """Return the training set of DPO, with as many pairs as the trial's steps need.

    Raises:
        UsageError: The data set has no pairs, or no prompt of it leaves room for a completion.
    """
    if spec.dataset is not None:
        return _from_dataset(spec, spec.dataset, tokenizer, (_PROMPT, _CHOSEN, _REJECTED))
    chosen, rejected = synthetic_rows(spec, lengths, sides=2)
    return Dataset.from_dict(
        {"prompt_ids": synthetic_prompts(spec, lengths), "chosen_ids": chosen, "rejected_ids": rejected}
    )


def build_judged_rows(spec: TrialSpec, tokenizer: Any, lengths: RowLengths | None = None) -> Dataset:
    """Return the training set of KTO, with as many rows as the trial's steps need.

    Pairs of a data set are two rows, as trl splits them. The completions of the KL term are those of the neighbours in
    the same micro-batch (`KTOTrainer._prepare_dataset`).

    Raises:
        UsageError: The data set has no such rows, or no prompt of it leaves room for a completion.
    """
    if spec.dataset is None:
        (completions,) = synthetic_rows(spec, lengths)
        labels = [row % 2 == 0 for row in range(rows_needed(spec))]
        columns = {"prompt_ids": synthetic_prompts(spec, lengths), "completion_ids": completions, _LABEL: labels}
        return _with_neighbours(spec, Dataset.from_dict(columns))
    if _CHOSEN in load_rows(spec.dataset).column_names:
        pairs = build_pairs(spec, tokenizer)
        prompts, sides = pairs["prompt_ids"], (pairs["chosen_ids"], pairs["rejected_ids"])
        split = [(prompt, side[row], side is sides[0]) for row, prompt in enumerate(prompts) for side in sides]
        names = ("prompt_ids", "completion_ids", _LABEL)
        used = zip(*repeated(spec, split), strict=True)
        return _with_neighbours(spec, Dataset.from_dict(dict(zip(names, map(list, used), strict=True))))
    rows = _from_dataset(spec, spec.dataset, tokenizer, (_PROMPT, _COMPLETION))
    labels = [row % 2 == 0 for row in range(len(rows))]
    return _with_neighbours(spec, rows.add_column(_LABEL, labels))


def _with_neighbours(spec: TrialSpec, rows: Dataset) -> Dataset:
    size, completions = spec.per_device_train_batch_size, list(rows["completion_ids"])
    batches = [completions[first : first + size] for first in range(0, len(completions), size)]
    return rows.add_column("KL_completion_ids", [ids for each in batches for ids in (each[-1], *each[:-1])])


def _from_dataset(spec: TrialSpec, source: str, tokenizer: Any, columns: tuple[str, ...]) -> Dataset:
    """Rows of a data set, repeated as often as needed. Those without a completion after the cut are left out."""
    rows = load_rows(source)
    if not set(columns) <= set(rows.column_names):
        raise missing_column(source, rows, " with ".join(columns))
    tokens, end = sequence_length(spec), [tokenizer.eos_token_id]
    found = []
    for row in rows.select(range(min(len(rows), rows_needed(spec)))):
        prompt, *completions = (tokenizer(row[column])["input_ids"] for column in columns)
        if len(prompt) < tokens:
            found.append((prompt, *(ids + end for ids in completions)))
    if not found:
        problem = f"has no prompt of less than max_length={tokens} tokens"
        raise UsageError([Fault(key="dataset", found=source, problem=problem, hint="Raise max_length.")])
    used = repeated(spec, found)
    return Dataset.from_dict(
        {f"{name}_ids": list(each) for name, each in zip(columns, zip(*used, strict=True), strict=True)}
    )


class Dpo:
    """Trains on pairs of completions. Keys of generation and rewards do not apply."""

    phases = (Phase.LOAD, Phase.FORWARD, Phase.SCORE, Phase.BACKWARD, Phase.OPTIMIZER)

    _module: Any = dpo_trainer
    _config: type[Any] = DPOConfig
    _trainer: type[AnnouncedReference] = ProfiledDPOTrainer

    def arguments(self, spec: TrialSpec, session: Session, output_dir: Path) -> Any:
        """Return the `DPOConfig` of the trial, or the `KTOConfig`."""
        return self._config(
            **arguments_of_rows(spec, use_cpu=session.use_cpu, output_dir=output_dir),
            beta=spec.beta,
            # trl's default switches off the dropout of adapters too.
            disable_dropout=not spec.lora_dropout,
            precompute_ref_log_probs=spec.precompute_ref_log_probs,
            precompute_ref_batch_size=spec.precompute_ref_batch_size,
        )

    def data(self, spec: TrialSpec, tokenizer: Any, rows: RowLengths | None = None) -> Dataset:
        """Return the pairs."""
        return build_pairs(spec, tokenizer, rows)

    def trainer(self, parts: TrainerParts) -> Any:
        """Return the trainer, with a reference model where it needs one."""
        with (
            reference_from_config(parts.spec, parts.config, parts.session, self._module),
            patched([(self._module, "hash_module", _no_hash)] if parts.spec.weights is Weights.RANDOM else []),
        ):
            return self._trainer(**parts.of_trainer(), referenced=parts.referenced)


class Kto(Dpo):
    """Trains on single completions, each good or not."""

    _module = kto_trainer
    _config = KTOConfig
    _trainer = ProfiledKTOTrainer

    def data(self, spec: TrialSpec, tokenizer: Any, rows: RowLengths | None = None) -> Dataset:
        """Return the rows, with the completions of their neighbours."""
        return build_judged_rows(spec, tokenizer, rows)


def _no_hash(_: Any) -> str:
    """Return the name under which the reference of a data set is kept: that of a data set in memory is not."""
    return ""
