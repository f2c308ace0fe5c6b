"""Direct preference optimization: what `DPOTrainer` needs of a trial, its pairs, and its phases.

trl's `DPOTrainer` that announces its phases, unchanged in what it computes.

Seams, each checked by a test against the installed libraries: `compute_loss`, `compute_ref_log_probs`,
`_precompute_ref_logps` and `_prepare_dataset` of trl's trainer, `create_model_from_path` and `hash_module` in its
module, and `get_batch_samples` of transformers' trainer; the others are in `announced_steps.py`.

Findings in trl 1.16 (`trl/trainer/dpo_trainer.py` and `dpo_config.py`):

- A pair is two rows, prompt and completion each. The chosen rows and then the rejected ones are one batch of one
  forward, padded to the longest of all (`DataCollatorForPreference`). `max_length` cuts prompt and completion together.
- The fused LM head scores the completions only (`completion_mask`). No logits of all tokens exist, neither of the
  policy nor of the reference. Up to 1.14 both had those of every token, prompts included.
- The reference runs within the loss, after the forward of the policy, whose saved activations wait meanwhile. It is
  another model in full fine-tuning, and with an adapter the policy with the adapter switched off. It saves nothing.
- `precompute_ref_log_probs` runs the reference over all rows while the trainer is made. In full fine-tuning it is the
  policy itself, so that there never is a second model. `precompute_ref_batch_size` null is that of training.
- `padding_free` is switched off with a warning: rows are padded.
- `loss_type`, `f_divergence_type`, `label_smoothing` and `loss_weights` decide over a number per row. `ld_alpha` and
  `use_weighting` need some numbers per token.
- `disable_dropout` is on, so that adapters drop nothing whatever their `lora_dropout` is. Here it is off where the
  trial states one.
- `use_liger_kernel` replaces layers; the loss stays that of the fused head.
"""

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from trl import DPOConfig, DPOTrainer
from trl.trainer import dpo_trainer

from profiler.domain.errors import Fault, UsageError
from profiler.domain.memory import Phase
from profiler.domain.trials.trial import TrialSpec, Weights, completion_lengths
from profiler.seams.patching import patched
from profiler.training.announced_steps import AnnouncedSteps
from profiler.training.arguments import common_arguments, lora_config
from profiler.training.data.source_data import load_rows, missing_column
from profiler.training.data.tokenizer import token
from profiler.training.models.model import reference_from_config
from profiler.training.recipes.recipe import TrainerParts
from profiler.training.recipes.sft import sequence_length
from profiler.training.session import Session

_COLUMNS = ("prompt", "chosen", "rejected")


class ProfiledDPOTrainer(AnnouncedSteps, DPOTrainer):
    """A `DPOTrainer` that announces its phases to `observer`. The reference within the loss is a phase of its own."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        for model in (self.model, self.ref_model):
            if model is not None:
                model.register_forward_pre_hook(self._begins)
                model.register_forward_hook(self._ends)

    def _begins(self, *_: Any) -> None:
        """Begin the phase of the reference: what computes without gradient in training."""
        if self.model.training and not torch.is_grad_enabled():
            self._observer.enter(Phase.SCORE)

    def _ends(self, *_: Any) -> None:
        if self.model.training and not torch.is_grad_enabled():
            self._observer.enter(Phase.FORWARD)

    def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
        """Return the pairs, which are tokens already."""
        return dataset

    def compute_ref_log_probs(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the reference of a batch before training."""
        self._observer.enter(Phase.SCORE)
        return super().compute_ref_log_probs(*args, **kwargs)

    def _precompute_ref_logps(self, *args: Any, **kwargs: Any) -> Any:
        found = super()._precompute_ref_logps(*args, **kwargs)
        self._observer.enter(Phase.LOAD)
        return found

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Load the micro-batches of one optimizer step; they belong to its forward phase."""
        self._observer.enter(Phase.FORWARD)
        return super().get_batch_samples(*args, **kwargs)


def build_pairs(spec: TrialSpec, tokenizer: Any) -> Dataset:
    """Return the training set, with as many pairs as the trial's steps need.

    Raises:
        UsageError: The data set has no pairs, or no prompt of it leaves room for a completion.
    """
    if spec.dataset is None:
        return _synthetic(spec)
    return _from_dataset(spec, spec.dataset, tokenizer)


def _pairs_needed(spec: TrialSpec) -> int:
    """Return the pairs of all steps, and no less than the reference takes at once before training."""
    trained = spec.per_device_train_batch_size * spec.gradient_accumulation_steps * spec.steps
    return spec.num_processes * max(trained, spec.precompute_ref_batch_size or 0)


def _synthetic(spec: TrialSpec) -> Dataset:
    """Pairs that differ. The first completion of a micro-batch has the full length; `lengths` decides the others."""
    rows = spec.training_rows
    lengths = completion_lengths(lengths=spec.lengths, rows=rows, max_completion_length=spec.longest)
    pairs = range(_pairs_needed(spec))

    def completions(side: int) -> list[list[int]]:
        of_pairs = ((pair, lengths[(2 * pair + side) % rows]) for pair in pairs)
        return [[token(pair + side + position) for position in range(length)] for pair, length in of_pairs]

    prompts = [[token(pair + position) for position in range(spec.max_prompt_length)] for pair in pairs]
    return Dataset.from_dict({"prompt_ids": prompts, "chosen_ids": completions(0), "rejected_ids": completions(1)})


def _from_dataset(spec: TrialSpec, source: str, tokenizer: Any) -> Dataset:
    """Pairs of a data set, repeated as often as needed. Those without a completion after the cut are left out."""
    rows = load_rows(source)
    if not set(_COLUMNS) <= set(rows.column_names):
        raise missing_column(source, rows, " with ".join(_COLUMNS))
    tokens, end = sequence_length(spec), [tokenizer.eos_token_id]
    found = []
    for row in rows.select(range(min(len(rows), _pairs_needed(spec)))):
        prompt, *completions = (tokenizer(row[column])["input_ids"] for column in _COLUMNS)
        if len(prompt) < tokens:
            found.append((prompt, *(ids + end for ids in completions)))
    if not found:
        problem = f"has no prompt of less than max_length={tokens} tokens"
        raise UsageError([Fault(key="dataset", found=source, problem=problem, hint="Raise max_length.")])
    used = [found[index % len(found)] for index in range(_pairs_needed(spec))]
    return Dataset.from_dict(
        {f"{name}_ids": list(each) for name, each in zip(_COLUMNS, zip(*used, strict=True), strict=True)}
    )


class Dpo:
    """Trains on pairs of completions. Keys of generation and rewards do not apply."""

    phases = (Phase.LOAD, Phase.FORWARD, Phase.SCORE, Phase.BACKWARD, Phase.OPTIMIZER)

    def arguments(self, spec: TrialSpec, session: Session, output_dir: Path) -> Any:
        """Return the `DPOConfig` of the trial.

        Pairs are used in their order and not shuffled, so that every micro-batch has a row of the full length.
        """
        return DPOConfig(
            **common_arguments(spec, use_cpu=session.use_cpu, output_dir=output_dir),
            max_length=sequence_length(spec),
            beta=spec.beta,
            # trl's default switches off the dropout of adapters too.
            disable_dropout=not spec.lora_dropout,
            precompute_ref_log_probs=spec.precompute_ref_log_probs,
            precompute_ref_batch_size=spec.precompute_ref_batch_size,
            activation_offloading=spec.activation_offloading,
            train_sampling_strategy="sequential",
        )

    def data(self, spec: TrialSpec, tokenizer: Any) -> Dataset:
        """Return the pairs."""
        return build_pairs(spec, tokenizer)

    def trainer(self, parts: TrainerParts) -> ProfiledDPOTrainer:
        """Return the trainer, with a reference model where it needs one."""
        with (
            reference_from_config(parts.spec, parts.config, parts.session, dpo_trainer),
            patched([(dpo_trainer, "hash_module", _no_hash)] if parts.spec.weights is Weights.RANDOM else []),
        ):
            return ProfiledDPOTrainer(
                observer=parts.session,
                model=parts.model,
                args=parts.arguments,
                train_dataset=parts.data,
                processing_class=parts.tokenizer,
                peft_config=lora_config(parts.spec),
            )


def _no_hash(_: Any) -> str:
    """Return the name under which the reference of a data set is kept: that of a data set in memory is not."""
    return ""
