"""Supervised fine-tuning and reward models: what their trainers need of a trial, its rows or pairs, and its phases.

trl's `SFTTrainer` and `RewardTrainer` that announce their phases, unchanged in what they compute unless `logprobs`
names a release.

Seams, each checked by a test against the installed libraries: `compute_loss` of trl's trainers; the others are in
`announced_steps.py`.

The loss of `SFTTrainer` keeps trl's default, which decides much of the memory. Findings in trl 1.16
(`trl/trainer/sft_config.py` and `sft_trainer.py`, `add_fused_lm_head` in `trl/trainer/utils.py`,
`trl/kernels/chunked_logprob.py`):

- `loss_type="nll"` is the default. `"chunked_nll"` is a deprecated alias: `SFTConfig` replaces it by `"nll"` with a
  warning.
- The trainer adds a fused LM head to the model and never makes the logits [rows, tokens, vocabulary]. On CUDA only the
  positions with a label are projected, tile by tile, into one buffer of [min(positions, 4096), 32768] in the data type
  of autocast. Per scored position, forward has seven float32 vectors of online statistics, and the entropy and the
  top-1 flag that trl logs. Backward calculates each tile again and accumulates in float32: [positions, hidden], and
  [vocabulary, hidden] where the weight of the LM head is trained.
- It is the head of `GRPOTrainer`, without its completion mask: by default every token but the first of a row has a
  label. Of prompt-completion data only the completion has labels.
- `"dft"` multiplies the loss per token by the detached probability: float32 tensors of [rows, tokens - 1] more, and no
  larger head.
- `label_smoothing_factor` and `compute_loss_func` need the logits: trl runs the unfused forward for the loss, and a
  second, fused one for its metrics. This recipe uses neither.
- A call without `fused_lm_head` is that of transformers, which computes the loss of all logits, as in trl up to 1.6
  (`logprobs=nll` and its kin).
- In trl 1.7 to 1.14 the loss was that of chunks of tokens (`logprobs=chunked_nll` and its kin).

Of `RewardTrainer` (`trl/trainer/reward_trainer.py` and `reward_config.py`):

- The model is transformers' for sequence classification with one label: the decoder, and a head of one score in place
  of the LM head. There is no reference.
- A pair is two rows, the chosen ones and then the rejected ones in one batch of one forward, padded to the longest of
  all. The head scores every position, and the score of the last token of a row is taken.
- The loss is a number per pair. `center_rewards_coefficient` and a column `margin` change nothing else.
- Rows longer than `max_length` are left out, not cut.
- `disable_dropout` is on, so that adapters drop nothing. Here it is off where the trial states a `lora_dropout`.
- With peft's task `SEQ_CLS`, which trl's `ModelConfig` recommends, the head is trained as a whole, in a copy. With
  `CAUSAL_LM`, its default, the random head stays as it is, and `all-linear` adapts it: some kilobytes less or more.
"""

from pathlib import Path
from types import MethodType
from typing import Any

import torch
from datasets import Dataset
from torch.utils.checkpoint import checkpoint
from transformers.modeling_outputs import CausalLMOutputWithPast
from trl import RewardConfig, RewardTrainer, SFTConfig, SFTTrainer

from profiler.domain.errors import Fault, UsageError
from profiler.domain.memory import Phase
from profiler.domain.trials.trial import CHUNK_TOKENS, ENTROPY_TOKENS, ChunkedLoss, LabelLoss, RowLengths, TrialSpec
from profiler.training.announced_steps import AnnouncedRows, log_entropy
from profiler.training.arguments import arguments_of_rows
from profiler.training.data.source_data import (
    load_rows,
    missing_column,
    repeated,
    rows_needed,
    sequence_length,
    synthetic_rows,
)
from profiler.training.placement import Session
from profiler.training.recipes.recipe import TrainerParts

_NO_LABEL = -100
"""The label of a token that is no part of the loss, in transformers and trl."""


@torch.no_grad()
def log_metrics(logits: torch.Tensor, label_loss: LabelLoss) -> None:
    """Compute what trl logs of logits, [rows, tokens, vocabulary]: the entropy, and the most likely tokens.

    Its statements are those that decide which tensors exist at once: a name that trl keeps is kept here.

    Source of the method: `SFTTrainer.compute_loss` of trl 0.15.2 to 1.14.0 in `trl/trainer/sft_trainer.py`.
    """
    shifted = logits
    if label_loss.copies_in_entropy:
        shifted = _without_last(logits)
    if label_loss.has_entropy:
        log_entropy(shifted, logits.shape[1] if label_loss.entropy_by_row else ENTROPY_TOKENS)
    if label_loss.copies_in_accuracy:
        # A first copy stays until the second is there.
        shifted = _without_last(logits)
    if shifted is not logits:
        shifted.argmax(dim=-1)


def _without_last(logits: torch.Tensor) -> torch.Tensor:
    """Return the logits that score a token; a copy of them if there are several rows."""
    return logits[:, :-1, :].contiguous()


def _loss_of_chunk(
    hidden: torch.Tensor, head: torch.Tensor, labels: torch.Tensor, how: ChunkedLoss
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sums of the negative log-likelihood and of the entropy of the labelled tokens of one chunk."""
    if how.widens_inputs:  # noqa: SIM108  two statements of two releases
        logits = hidden.float() @ head.float().t()
    else:
        logits = (hidden @ head.to(hidden.dtype).t()).float()
    scores = logits.log_softmax(dim=-1)
    loss = torch.nn.functional.nll_loss(scores, labels, ignore_index=_NO_LABEL, reduction="sum")
    logits.argmax(dim=-1)
    entropy = -(scores.exp() * scores).sum(dim=-1)
    return loss, (entropy * (labels != _NO_LABEL) if how.runs_to_the_end else entropy).sum()


def chunked_loss(
    hidden: torch.Tensor, head: torch.Tensor, labels: torch.Tensor, how: ChunkedLoss
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum of the negative log-likelihood of all labels, and their number, as releases of trl compute it.

    Args:
        hidden: Hidden states, [rows, tokens, hidden].
        head: The weight of the LM head, [vocabulary, hidden].
        labels: [rows, tokens].
        how: What differs between releases.

    Source of the method: `_chunked_cross_entropy_loss` of trl 1.7.1 to 1.14.2 in `trl/trainer/sft_trainer.py`.
    """
    hidden, labels = hidden[:, :-1].reshape(-1, hidden.shape[-1]), labels[:, 1:].reshape(-1)
    scored = labels != _NO_LABEL
    picked = scored.to(torch.int8).argsort(descending=True, stable=True) if how.keeps_padding else scored
    hidden, labels, count = hidden[picked], labels[picked], scored.sum()
    loss = hidden.new_zeros((), dtype=torch.float32)
    for start in range(0, int(count), CHUNK_TOKENS):
        part = slice(start, start + CHUNK_TOKENS)
        of_chunk, _ = checkpoint(_loss_of_chunk, hidden[part], head, labels[part], how, use_reentrant=False)
        loss = loss + of_chunk
    return loss, count


def _compute_in_chunks(model: Any, how: ChunkedLoss) -> None:
    """Let the forward of a transformers model with labels compute its loss in chunks, as trl's patch does."""
    of_transformers = model.forward

    def forward(self: Any, labels: Any = None, num_items_in_batch: Any = None, **inputs: Any) -> Any:
        if labels is None:
            return of_transformers(**inputs)
        hidden = self.base_model(**inputs).last_hidden_state
        loss, count = chunked_loss(hidden, self.get_output_embeddings().weight, labels, how)
        return CausalLMOutputWithPast(loss=loss / (count if num_items_in_batch is None else num_items_in_batch))

    model.forward = MethodType(forward, model)


class _OfEachRelease(SFTTrainer):
    """An `SFTTrainer` whose loss is that of an earlier release if `logprobs` is not `fused`."""

    _spec: TrialSpec

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        if self._spec.logprobs.chunked_loss is not None:
            model: Any = self.model
            base = model.get_base_model() if hasattr(model, "get_base_model") else model
            _compute_in_chunks(base, self._spec.logprobs.chunked_loss)

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the loss of one micro-batch."""
        if self._spec.logprobs.has_fused_head:
            return super().compute_loss(model, inputs, *args, **kwargs)
        return self._of_the_model(model, inputs, *args, **kwargs)

    def _of_the_model(self, model: Any, inputs: Any, _: bool = False, num_items_in_batch: Any = None) -> torch.Tensor:
        """Return the loss that the model's forward computes; logits of all tokens stay until trl has logged them."""
        loss, outputs = super(SFTTrainer, self).compute_loss(
            model, {**inputs, "use_cache": False}, True, num_items_in_batch
        )
        if (label_loss := self._spec.logprobs.label_loss) is not None:
            log_metrics(outputs.logits, label_loss)
        return loss


class ProfiledSFTTrainer(AnnouncedRows, _OfEachRelease):
    """An `SFTTrainer` that announces its phases to `observer`."""

    def __init__(self, *, spec: TrialSpec, **arguments: Any) -> None:
        self._spec = spec
        super().__init__(**arguments)


_TEXT = "text"
_PAIRS = (("prompt", "completion"), ("question", "answer"))


def build_rows(spec: TrialSpec, tokenizer: Any, lengths: RowLengths | None = None) -> Dataset:
    """Return the training set: columns `input_ids` and `labels`, with as many rows as the trial's steps need.

    Raises:
        UsageError: The data set has no column of texts, or no token of it has a label.
    """
    if spec.dataset is None:
        (rows,) = synthetic_rows(spec, lengths)
        return Dataset.from_dict({"input_ids": rows, "labels": rows})
    return _from_dataset(spec, spec.dataset, tokenizer)


def _from_dataset(spec: TrialSpec, source: str, tokenizer: Any) -> Dataset:
    """Rows of a data set, repeated as often as needed. Rows without a label after the cut are left out, as in trl."""
    rows = load_rows(source)
    pair = next((pair for pair in _PAIRS if set(pair) <= set(rows.column_names)), None)
    if pair is None and _TEXT not in rows.column_names:
        raise missing_column(source, rows, _TEXT, *(" with ".join(pair) for pair in _PAIRS))
    tokens = sequence_length(spec)
    end = [tokenizer.eos_token_id]
    found: list[tuple[list[int], list[int]]] = []
    for row in rows.select(range(min(len(rows), rows_needed(spec)))):
        prompt = [] if pair is None else tokenizer(row[pair[0]])["input_ids"]
        completion = tokenizer(row[_TEXT if pair is None else pair[1]])["input_ids"] + end
        labels = [_NO_LABEL] * len(prompt) + completion
        if len(prompt) < tokens:
            found.append(((prompt + completion)[:tokens], labels[:tokens]))
    if not found:
        problem = f"has no row whose completion begins within max_length={tokens} tokens"
        raise UsageError([Fault(key="dataset", found=source, problem=problem, hint="Raise max_length.")])
    used = repeated(spec, found)
    return Dataset.from_dict({"input_ids": [ids for ids, _ in used], "labels": [labels for _, labels in used]})


class Sft:
    """Trains on rows of tokens. Keys of generation, rewards and reference do not apply."""

    phases = (Phase.LOAD, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)

    def arguments(self, spec: TrialSpec, session: Session, output_dir: Path) -> Any:
        """Return the `SFTConfig` of the trial."""
        return SFTConfig(
            **arguments_of_rows(spec, use_cpu=session.use_cpu, output_dir=output_dir),
            # The rows are tokens already, cut to `max_length`.
            dataset_kwargs={"skip_prepare_dataset": True},
        )

    def data(self, spec: TrialSpec, tokenizer: Any, rows: RowLengths | None = None) -> Dataset:
        """Return the rows."""
        return build_rows(spec, tokenizer, rows)

    def trainer(self, parts: TrainerParts) -> ProfiledSFTTrainer:
        """Return the trainer; there is no reference model."""
        return ProfiledSFTTrainer(spec=parts.spec, **parts.of_trainer())


# ---- reward models ---------------------------------------------------------------------------------------------------

_PROMPT = "prompt"
_SIDES = ("chosen", "rejected")


class ProfiledRewardTrainer(AnnouncedRows, RewardTrainer):
    """A `RewardTrainer` that announces its phases to `observer`."""


def build_compared_rows(spec: TrialSpec, tokenizer: Any, lengths: RowLengths | None = None) -> Dataset:
    """Return the training set, with as many pairs as the trial's steps need.

    Raises:
        UsageError: The data set has no pairs, or none whose rows are short enough.
    """
    if spec.dataset is None:
        return _pairs(*synthetic_rows(spec, lengths, sides=2))
    rows, tokens, end = load_rows(spec.dataset), sequence_length(spec), [tokenizer.eos_token_id]
    if not set(_SIDES) <= set(rows.column_names):
        raise missing_column(spec.dataset, rows, " with ".join(_SIDES))
    found = []
    for row in rows.select(range(min(len(rows), rows_needed(spec)))):
        prompt = row[_PROMPT] if _PROMPT in rows.column_names else ""
        pair = [tokenizer(prompt + row[side])["input_ids"] + end for side in _SIDES]
        if max(map(len, pair)) <= tokens:
            found.append(pair)
    if not found:
        problem = f"has no pair of rows of at most max_length={tokens} tokens"
        raise UsageError([Fault(key="dataset", found=spec.dataset, problem=problem, hint="Raise max_length.")])
    chosen, rejected = zip(*repeated(spec, found), strict=True)
    return _pairs(list(chosen), list(rejected))


def _pairs(chosen: list[list[int]], rejected: list[list[int]]) -> Dataset:
    return Dataset.from_dict({"chosen_ids": chosen, "rejected_ids": rejected})


class Reward:
    """Trains a model that scores rows, on pairs. Keys of generation, prompts and a reference do not apply."""

    phases = (Phase.LOAD, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)

    def arguments(self, spec: TrialSpec, session: Session, output_dir: Path) -> Any:
        """Return the `RewardConfig` of the trial."""
        return RewardConfig(
            **arguments_of_rows(spec, use_cpu=session.use_cpu, output_dir=output_dir),
            # trl's default switches off the dropout of adapters too.
            disable_dropout=not spec.lora_dropout,
        )

    def data(self, spec: TrialSpec, tokenizer: Any, rows: RowLengths | None = None) -> Dataset:
        """Return the pairs."""
        return build_compared_rows(spec, tokenizer, rows)

    def trainer(self, parts: TrainerParts) -> ProfiledRewardTrainer:
        """Return the trainer; there is no reference model."""
        return ProfiledRewardTrainer(**parts.of_trainer())
