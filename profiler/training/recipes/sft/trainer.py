"""trl's `SFTTrainer`, unchanged in what it computes, that announces its phases.

Seams, each checked by a test against the installed libraries: `compute_loss` of trl's trainer and `get_batch_samples`
of transformers'; the others are in `announced_steps.py`.
"""

from typing import Any

from trl import SFTTrainer

from profiler.domain.memory import Phase
from profiler.training.announced_steps import AnnouncedSteps


class ProfiledSFTTrainer(AnnouncedSteps, SFTTrainer):
    """An `SFTTrainer` that announces its phases to `observer`."""

    ref_model = None
    """There is no reference model."""

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Load the micro-batches of one optimizer step; they belong to its forward phase."""
        self._observer.enter(Phase.FORWARD)
        return super().get_batch_samples(*args, **kwargs)
