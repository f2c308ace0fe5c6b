"""What `SFTTrainer` of trl up to 1.6 makes of all logits, in addition to the loss, which transformers computes."""

import torch

from profiler.domain.trials.trial import ENTROPY_TOKENS, LabelLoss
from profiler.training.recipes.entropy import entropy


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
        entropy(shifted, logits.shape[1] if label_loss.entropy_by_row else ENTROPY_TOKENS)
    if label_loss.copies_in_accuracy:
        # A first copy stays until the second is there.
        shifted = _without_last(logits)
    if shifted is not logits:
        shifted.argmax(dim=-1)


def _without_last(logits: torch.Tensor) -> torch.Tensor:
    """Return the logits that score a token; a copy of them if there are several rows."""
    return logits[:, :-1, :].contiguous()
