"""Micro-batches by tokens: the rows of an optimizer step in parts of at most so many tokens, padding included.

verl packs the rows of a micro-batch, so its limit (`ppo_max_token_len_per_gpu`) is one of tokens without padding. trl
pads the rows of a micro-batch to one length. So rows of similar length share a part here, each part is cut to its
longest prompt and its longest completion, and padding counts.
"""

from collections.abc import Sequence
from typing import Any

import torch


def rows_by_tokens(lengths: Sequence[tuple[int, int]], most_tokens: int) -> list[list[int]]:
    """Return the rows of each part, the longest rows first.

    By hand, 8, 7, 6 and 5 tokens after a prompt of 2, with at most 20: two rows of 10, then two of 8.

    Args:
        lengths: Tokens of the prompt and of the completion of each row.
        most_tokens: Limit of rows x (longest prompt + longest completion); a row alone may exceed it.
    """
    parts: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: (sum(lengths[row]), -row), reverse=True):
        part = [*parts[-1], row] if parts else [row]
        width = sum(max(lengths[member][side] for member in part) for side in (0, 1))
        if parts and len(part) * width <= most_tokens:
            parts[-1] = part
        else:
            parts.append([row])
    return parts


def split_by_tokens(inputs: dict[str, Any], most_tokens: int) -> list[dict[str, Any]]:
    """Return the parts of `inputs`, a batch as trl's loss takes it: left-padded prompts, right-padded completions."""
    prompts, completions = (inputs[key].sum(dim=1).tolist() for key in ("prompt_mask", "completion_mask"))
    lengths = list(zip(prompts, completions, strict=True))
    return [
        _part(inputs, rows, prompt=max(prompts[row] for row in rows), completion=max(completions[row] for row in rows))
        for rows in rows_by_tokens(lengths, most_tokens)
    ]


def _part(inputs: dict[str, Any], rows: list[int], *, prompt: int, completion: int) -> dict[str, Any]:
    """Return `rows` of a batch, cut to as many tokens; what belongs to the whole batch (a scalar) stays."""
    widths = (inputs["prompt_ids"].shape[1], inputs["completion_ids"].shape[1])

    def cut(key: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dim() == 0:
            return value
        chosen = value[torch.tensor(rows)]
        if value.dim() == 1:
            return chosen
        return chosen[:, widths[0] - prompt :] if key.startswith("prompt_") else chosen[:, :completion]

    return {key: cut(key, value) for key, value in inputs.items()}
