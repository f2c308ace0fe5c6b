"""One batch against two micro-batches: the gradient of GRPO's loss, with a small model on the CPU."""

from collections.abc import Sequence

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from profiler.domain.claims import Loss
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.trials.trial import Lengths, completion_lengths

ROUNDING = 1e-5
"""Largest relative difference of two gradients in float32 that counts as rounding."""

_VOCABULARY = 512
_PROMPT, _COMPLETION, _ROWS, _MICRO_BATCHES = 16, 32, 16, 2


def look(loss: Loss) -> tuple[bool, str]:
    """Return whether the gradient is the same within rounding, and the relative difference."""
    difference = relative_difference(loss)
    return difference <= ROUNDING, f"gradients differ by {difference:.1g} of their norm"


def relative_difference(loss: Loss) -> float:
    """Return the norm of the difference of both gradients, divided by the norm of the first.

    16 completions of 4 prompts, of 20 to 32 tokens, with advantages of both signs; the two micro-batches have 8 each.
    """
    torch.manual_seed(0)
    model = _model()
    ids = torch.randint(0, _VOCABULARY, (_ROWS, _PROMPT + _COMPLETION))
    # The halves have different numbers of tokens, as batches of a real rollout do.
    tokens = sorted(completion_lengths(lengths=Lengths.RAGGED, rows=_ROWS, max_completion_length=_COMPLETION))
    advantages = torch.randn(_ROWS)
    whole = _gradient(model, ids, tokens, advantages, loss=loss, parts=1)
    halves = _gradient(model, ids, tokens, advantages, loss=loss, parts=_MICRO_BATCHES)
    return float((whole - halves).norm() / whole.norm())


def _model() -> torch.nn.Module:
    values = dict(BUILTIN_MODELS["tiny"].config)
    config = CONFIG_MAPPING[str(values.pop("model_type"))](**values)
    model: torch.nn.Module = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model


def _gradient(
    model: torch.nn.Module,
    ids: torch.Tensor,
    tokens: Sequence[int],
    advantages: torch.Tensor,
    *,
    loss: Loss,
    parts: int,
) -> torch.Tensor:
    """Return the gradient of all parameters after `parts` micro-batches."""
    model.zero_grad()
    mask = torch.zeros(_ROWS, _COMPLETION)
    for row, length in enumerate(tokens):
        mask[row, :length] = 1
    size = _ROWS // parts
    for start in range(0, _ROWS, size):
        rows = slice(start, start + size)
        per_token = -advantages[rows, None] * _ratio(model, ids[rows]) * mask[rows]
        _averaged(per_token, mask[rows], loss, parts=parts, all_tokens=float(mask.sum())).backward()
    return torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])


def _ratio(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Return the ratio of the policy to itself, of which the gradient is that of the log-probability."""
    logits = model(ids).logits[:, _PROMPT - 1 : -1]
    chosen = logits.log_softmax(-1).gather(2, ids[:, _PROMPT:, None]).squeeze(2)
    return torch.exp(chosen - chosen.detach())


def _averaged(
    per_token: torch.Tensor, mask: torch.Tensor, loss: Loss, *, parts: int, all_tokens: float
) -> torch.Tensor:
    if loss is Loss.PER_COMPLETION:
        return (per_token.sum(1) / mask.sum(1)).mean() / parts
    return per_token.sum() / (mask.sum() * parts if loss is Loss.PER_TOKEN else all_tokens)
