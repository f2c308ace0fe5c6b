"""Log-probabilities as trl 0.14.0 computed them: the logits of all rows at once."""

from typing import Any

import torch


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
