"""Log-probabilities as earlier releases of trl computed them: the logits of all rows at once."""

from typing import Any

import torch

from profiler.domain.trials.trial import ENTROPY_TOKENS, Selection
from profiler.training.recipes.entropy import entropy


def full_logprobs(model: Any, input_ids: torch.Tensor, logits_to_keep: int) -> torch.Tensor:
    """Return the log-probability of each of the last `logits_to_keep` tokens; shape [rows, logits_to_keep].

    The logits of the completion, [rows, logits_to_keep + 1, vocabulary], exist at once. The log-softmax is computed row
    by row, and each row's is kept for backward. No attention mask is passed, so ragged rows do not change the attention
    kernel.

    Source of the method: `GRPOTrainer.compute_loss` in trl 0.14.0 (its inner `get_per_token_logps`).
    """
    # One position more: the logits at a position score the next token, and the last ones score nothing.
    logits = model(input_ids=input_ids, logits_to_keep=logits_to_keep + 1).logits[:, :-1]
    scored = input_ids[:, -logits_to_keep:]
    return torch.stack([_row(row_logits, row_ids) for row_logits, row_ids in zip(logits, scored, strict=True)])


def _row(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """[tokens, vocabulary] and [tokens] -> [tokens]."""
    return logits.log_softmax(dim=-1).gather(1, ids.unsqueeze(1)).squeeze(1)


def selective_logprobs(
    model: Any,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    logits_to_keep: int,
    *,
    selection: Selection,
    temperature: float,
) -> torch.Tensor:
    """Return the log-probability of each of the last `logits_to_keep` tokens; shape [rows, logits_to_keep].

    Training computes the entropy of these tokens as well, which it only logs.

    Source of the method: `_get_per_token_logps_and_entropies` of trl 0.16.0 to 1.13.0 in `trl/trainer/grpo_trainer.py`,
    `selective_log_softmax` in `trl/trainer/utils.py`. Its statements are those that decide
    which tensors exist at once: a name that trl keeps until the end of the function is kept here.
    """
    outputs = model(
        input_ids=input_ids, attention_mask=attention_mask, logits_to_keep=logits_to_keep + 1, use_cache=False
    )
    logits = outputs.logits[:, :-1, :][:, -logits_to_keep:, :]
    if not selection.keeps_outputs:
        del outputs
    if selection.in_place:
        logits.div_(temperature)
    else:
        logits = logits / temperature
    found = _selected(logits, input_ids[:, -logits_to_keep:].unsqueeze(-1))
    if torch.is_grad_enabled():
        with torch.no_grad():
            entropy(logits, logits_to_keep if selection.entropy_by_row else ENTROPY_TOKENS)
    return found


def _selected(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """[rows, tokens, vocabulary] and [rows, tokens, 1] -> [rows, tokens]. Narrow types take a log-softmax of rows."""
    if logits.dtype is torch.float32:
        chosen = logits.gather(-1, ids)
        sums = torch.stack([row.logsumexp(dim=-1) for row in logits])
        return (chosen - sums.unsqueeze(-1)).squeeze(-1)
    rows = []
    for row_logits, row_ids in zip(logits, ids, strict=True):
        # Kept until the next row has its own.
        scores = row_logits.log_softmax(dim=-1)
        rows.append(scores.gather(-1, row_ids))
    return torch.stack(rows).squeeze(-1)
