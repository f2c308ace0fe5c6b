"""A critic for trl's GRPO, as PPO has one: constructed, because trl has none.

The construction follows verl's PPO on one GPU (`RayPPOTrainer.fit`, `DataParallelPPOCritic`):

- the critic is a model of the same size with a head of one value per token, and is trained as a whole;
- after the completions are scored and rewarded, the critic computes the values of their tokens, without gradient;
- advantages are those of GAE with `gamma` and `lam` of 1, verl's defaults: the reward of the row minus the value. The
  reward is the one that GRPO compares within its group;
- the critic is updated on the whole generation, micro-batch by micro-batch, with its optimizer's step after as many as
  the policy accumulates. Only then is the policy updated.

Both models stay on the GPU throughout. Optimizer, checkpointing and types are those of the policy; its learning rate is
constant.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from typing import Any

import torch
from transformers import AutoModelForTokenClassification

from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.memory import Category
from profiler.domain.trials.trial import TrialSpec, Weights
from profiler.training.models.model import NO_SUCH_MODEL
from profiler.training.placement import Placement

VALUES = "values"
"""The key of the values in a batch."""

_VALUE_CLIP = 0.5
"""How far a value may move in one update (`critic.cliprange_value` of verl)."""

Autocast = Callable[[], AbstractContextManager[Any]]


class Critic:
    """The critic of one trial, with its optimizer."""

    def __init__(self, spec: TrialSpec, config: Any, placement: Placement, arguments: Any) -> None:
        self._placement = placement
        self._arguments = arguments
        self._rows = spec.per_device_train_batch_size
        self._batches = 0
        self.model = _model(spec, config, placement)
        if spec.gradient_checkpointing:
            self.model.gradient_checkpointing_enable(arguments.gradient_checkpointing_kwargs)
        self.optimizer: Any = None
        """Made by the trainer, with that of the policy."""

    def score(self, batch: dict[str, Any], autocast: Autocast) -> None:
        """Add the values of the completions to a generation, and replace its advantages."""
        self.model.eval()
        rows = batch["completion_ids"].shape[0]
        with torch.no_grad():
            parts = [
                self._values({key: batch[key][start : start + self._rows] for key in _READ}, autocast)
                for start in range(0, rows, self._rows)
            ]
            batch[VALUES] = torch.cat(parts) * batch["completion_mask"]
            batch["advantages"] = (batch["advantages"].unsqueeze(1) - batch[VALUES]) * batch["completion_mask"]

    def update(self, parts: Sequence[dict[str, Any]], autocast: Autocast) -> None:
        """Train on one micro-batch of trl, in parts whose losses add up; step after as many as are accumulated."""
        self.model.train()
        accumulated = self._arguments.gradient_accumulation_steps
        scored = sum(part["completion_mask"].sum() for part in parts)
        for part in parts:
            (value_loss(self._values(part, autocast), part) / (scored * accumulated)).backward()
        self._batches += 1
        if self._batches % accumulated == 0:
            self._step()

    def _step(self) -> None:
        with self._placement.attributed(Category.WORKSPACE):
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._arguments.max_grad_norm)
            self.optimizer.step()
        self.model.zero_grad()

    def _values(self, batch: dict[str, Any], autocast: Autocast) -> torch.Tensor:
        """Return the value before each token of the completions, in float32; shape [rows, tokens]."""
        ids, mask = (torch.cat([batch[f"{part}_{kind}"] for part in _PARTS], dim=1) for kind in ("ids", "mask"))
        with autocast():
            values = self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        tokens = batch["completion_ids"].shape[1]
        return values[:, -tokens - 1 : -1].squeeze(-1).float()


_PARTS = ("prompt", "completion")
_READ = tuple(f"{part}_{kind}" for part in _PARTS for kind in ("ids", "mask"))


def value_loss(values: torch.Tensor, batch: dict[str, Any]) -> torch.Tensor:
    """Return the sum of squared errors of `values` over the tokens of a batch, clipped as PPO clips them; halved.

    By hand, a value of 1 where the return is 3 and the value before was 0: clipped to 0.5, so (3 - 0.5)^2 / 2 = 3.125.
    """
    before, mask = batch[VALUES], batch["completion_mask"]
    returns = batch["advantages"] + before
    clipped = before + (values - before).clamp(-_VALUE_CLIP, _VALUE_CLIP)
    return 0.5 * (torch.max((values - returns) ** 2, (clipped - returns) ** 2) * mask).sum()


def _model(spec: TrialSpec, config: Any, placement: Placement) -> Any:
    """Return the critic, with random weights or on the pretrained weights of the policy's checkpoint."""
    options = {
        "dtype": getattr(torch, spec.dtype.value),
        "attn_implementation": spec.attn_implementation.value,
    }
    try:
        if spec.weights is Weights.PRETRAINED:
            return AutoModelForTokenClassification.from_pretrained(
                spec.model, num_labels=1, device_map={"": placement.device}, **options
            )
        own = deepcopy(config)
        own.num_labels = 1
        with placement.device:
            return AutoModelForTokenClassification.from_config(own, **options)
    except ValueError as error:
        if NO_SUCH_MODEL not in str(error):
            raise
        raise UnsupportedTrialError(
            f"transformers has no model with a value per token (token classification) for {config.model_type}"
        ) from error
