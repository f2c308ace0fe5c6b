"""trl's `SFTTrainer` that announces its phases, unchanged in what it computes unless `logprobs` names a release.

Seams, each checked by a test against the installed libraries: `compute_loss` of trl's trainer and `get_batch_samples`
of transformers'; the others are in `announced_steps.py`.
"""

from typing import Any

import torch
from trl import SFTTrainer

from profiler.domain.memory import Phase
from profiler.domain.trials.trial import LabelLoss, TrialSpec
from profiler.training.announced_steps import AnnouncedSteps
from profiler.training.recipes.sft.label_loss import log_metrics


class _OfEachRelease(SFTTrainer):
    """An `SFTTrainer` whose loss is that of an earlier release if `logprobs` is not `fused`."""

    _spec: TrialSpec

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the loss of one micro-batch."""
        label_loss = self._spec.logprobs.label_loss
        if label_loss is None:
            return super().compute_loss(model, inputs, *args, **kwargs)
        return self._of_all_logits(model, inputs, label_loss, *args, **kwargs)

    def _of_all_logits(
        self, model: Any, inputs: Any, label_loss: LabelLoss, _: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Return the loss that transformers computes of all logits, which stay until trl has logged its metrics."""
        loss, outputs = super(SFTTrainer, self).compute_loss(
            model, {**inputs, "use_cache": False}, True, num_items_in_batch
        )
        log_metrics(outputs.logits, label_loss)
        return loss


class ProfiledSFTTrainer(AnnouncedSteps, _OfEachRelease):
    """An `SFTTrainer` that announces its phases to `observer`."""

    ref_model = None
    """There is no reference model."""

    def __init__(self, *, spec: TrialSpec, **arguments: Any) -> None:
        self._spec = spec
        super().__init__(**arguments)

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Load the micro-batches of one optimizer step; they belong to its forward phase."""
        self._observer.enter(Phase.FORWARD)
        return super().get_batch_samples(*args, **kwargs)
