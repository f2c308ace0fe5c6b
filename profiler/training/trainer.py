"""trl's GRPOTrainer, unchanged in what it computes, announcing its phases. The only file that touches its seams.

Seams, each checked by a test against the installed trl: `_generate_single_turn`, `_get_per_token_logps_and_entropies`,
`_calculate_rewards`, `compute_loss`, `_prepare_inputs`; and transformers' `_clip_grad_norm`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from trl import GRPOTrainer

from profiler.domain.memory import Phase
from profiler.domain.trial import Logprobs, TrialSpec, completion_lengths
from profiler.training.logprobs import full_logprobs
from profiler.training.phases import PhaseObserver

RolloutContext = Callable[[Any], AbstractContextManager[None]]
"""From the transformers model to the context in which its `generate` runs."""


_NO_TOKEN = -1
"""Stands for the end of a sequence while rows are generated: a random model samples the real one by accident."""


class ProfiledTrainer(GRPOTrainer):
    """A GRPOTrainer that tells `observer` what it is doing and whose completions have the lengths of `spec`."""

    eos_token_ids: list[int]
    """trl's: every id that ends a completion."""

    def __init__(
        self,
        *,
        spec: TrialSpec,
        observer: PhaseObserver,
        rollout_context: RolloutContext | None = None,
        **trl_arguments: Any,
    ) -> None:
        self._spec = spec
        self._observer = observer
        self._rollout_context = rollout_context or (lambda _: nullcontext())
        self.micro_batches_run = 0
        super().__init__(**trl_arguments)

    # ---- rollout -----------------------------------------------------------------------------------------------------

    def _generate_single_turn(
        self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any
    ) -> tuple[list[list[int]], Any]:
        """Generate to the full length, then cut each row to its own: finished rows are computed to the end anyway."""
        self._observer.enter(Phase.ROLLOUT)
        base = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        eos_token_ids = self.eos_token_ids
        self.eos_token_ids = [_NO_TOKEN]
        try:
            with self._rollout_context(base):
                completions, logprobs = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        finally:
            self.eos_token_ids = eos_token_ids
        lengths = completion_lengths(
            lengths=self._spec.lengths,
            rows=len(completions),
            max_completion_length=self._spec.max_completion_length,
        )
        cut = [
            ids if length >= len(ids) else [*ids[: length - 1], eos_token_ids[0]]
            for ids, length in zip(completions, lengths, strict=True)
        ]
        return cut, logprobs

    # ---- scoring without gradient, and in training -------------------------------------------------------------------

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        if not torch.is_grad_enabled():
            self._observer.enter(Phase.SCORE)
        if self._spec.logprobs is Logprobs.FULL:
            rows = batch_size or input_ids.shape[0]
            with self.accelerator.autocast():
                parts = [full_logprobs(model, part, logits_to_keep) for part in input_ids.split(rows)]
            logps = torch.cat(parts)
            # trl 0.14.0 computed no entropy; today's trainer only logs it.
            return logps, torch.zeros_like(logps, requires_grad=False), None
        if self._spec.logprobs is Logprobs.SLICED:
            batch_size = 1
        return super()._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, logits_to_keep, batch_size=batch_size, **kwargs
        )

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self._observer.enter(Phase.REWARD)
        return super()._calculate_rewards(*args, **kwargs)

    # ---- forward, backward, optimizer --------------------------------------------------------------------------------

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """The loss of one micro-batch; all but the last row's backward is already done with ``logprobs=minibatch``."""
        self.micro_batches_run += 1
        if self._spec.logprobs is not Logprobs.MINIBATCH:
            return self._announced_loss(model, inputs, return_outputs, num_items_in_batch)
        rows = inputs["prompt_ids"].shape[0]
        done = None
        for row in range(rows - 1):
            loss = self._announced_loss(model, _row(inputs, row), return_outputs, num_items_in_batch)
            self.accelerator.backward(loss)
            done = loss.detach() if done is None else done + loss.detach()
            del loss
        last = self._announced_loss(model, _row(inputs, rows - 1), return_outputs, num_items_in_batch)
        return last if done is None else last + done

    def _announced_loss(self, *args: Any) -> torch.Tensor:
        self._observer.enter(Phase.FORWARD)
        loss = super().compute_loss(*args)
        # transformers runs backward as soon as the loss is back.
        self._observer.enter(Phase.BACKWARD)
        return loss

    def _clip_grad_norm(self, model: Any) -> Any:
        self._observer.enter(Phase.OPTIMIZER)
        return super()._clip_grad_norm(model)


def _row(inputs: dict[str, Any], row: int) -> dict[str, Any]:
    """One row of a micro-batch; what belongs to the whole batch (a scalar) stays."""
    return {
        key: value[row : row + 1] if isinstance(value, torch.Tensor) and value.dim() > 0 else value
        for key, value in inputs.items()
    }
