"""trl's `GRPOTrainer` and `RLOOTrainer`, unchanged in what they compute, that announce their phases.

Seams, each checked by a test against the installed trl: `_generate_single_turn`, `_get_per_token_logps_and_entropies`,
`_calculate_rewards`, `_generate_and_score_completions`, `_prepare_inputs` and `compute_loss`; those of transformers are
in `announced_steps.py`.
"""

from typing import Any

import torch
from torch.autograd.graph import save_on_cpu
from transformers import Trainer
from trl import GRPOTrainer, RLOOTrainer

from profiler.domain.memory import Phase
from profiler.domain.trials.trial import Logprobs, TrialSpec, completion_lengths
from profiler.training.announced_steps import AnnouncedSteps
from profiler.training.phases import PhaseObserver
from profiler.training.recipes.grpo.critic import Critic
from profiler.training.recipes.grpo.logprobs import full_logprobs, selective_logprobs
from profiler.training.recipes.grpo.token_batches import split_by_tokens
from profiler.training.rollouts.engine import RolloutEngine

_NO_TOKEN = -1
"""The end of a sequence while rows are generated: a random model samples the real id by accident."""


class ProfiledGeneration(AnnouncedSteps):
    """A trainer that announces its phases to `observer`; its completions have the lengths of `spec`."""

    eos_token_ids: list[int]
    """trl's: every id that ends a completion."""
    _buffered_inputs: list[dict[str, Any]] | None
    """trl's: the micro-batches of the last generation."""

    def __init__(
        self,
        *,
        spec: TrialSpec,
        observer: PhaseObserver,
        rollout: RolloutEngine,
        critic: Critic | None = None,
        **trl_arguments: Any,
    ) -> None:
        self._spec = spec
        self._rollout = rollout
        super().__init__(observer=observer, **trl_arguments)
        self.critic = critic

    # ---- rollout -----------------------------------------------------------------------------------------------------

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> Any:
        """Generate to the full length, then cut each row: finished rows are computed to the end anyway.

        `GRPOTrainer` returns the log-probabilities of vLLM alongside the completions, `RLOOTrainer` the latter alone.
        """
        self._observer.enter(Phase.ROLLOUT)
        base = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        eos_token_ids = self.eos_token_ids
        self.eos_token_ids = [_NO_TOKEN]
        try:
            with self._rollout.generating(base):
                found = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        finally:
            self.eos_token_ids = eos_token_ids
        completions, *others = found if isinstance(found, tuple) else (found,)
        lengths = completion_lengths(
            lengths=self._spec.lengths,
            rows=len(completions),
            max_completion_length=self._spec.max_completion_length,
        )
        cut = [
            ids if length >= len(ids) else [*ids[: length - 1], eos_token_ids[0]]
            for ids, length in zip(completions, lengths, strict=True)
        ]
        if not isinstance(found, tuple):
            return cut
        # None, or one log-probability per token that vLLM has sampled.
        return (cut, *(rows and [row[: len(ids)] for row, ids in zip(rows, cut, strict=True)] for rows in others))

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
        if self._spec.logprobs.makes_all_logits:
            rows = batch_size or input_ids.shape[0]
            parts = zip(input_ids.split(rows), attention_mask.split(rows), strict=True)
            with self.accelerator.autocast():
                logps = torch.cat([self._of_all_logits(model, *part, logits_to_keep) for part in parts])
            # trl 0.14.0 computed no entropy, and later ones log it only.
            return logps, torch.zeros_like(logps, requires_grad=False), None
        if self._spec.logprobs is Logprobs.SLICED:
            batch_size = 1
        elif self._spec.use_dynamic_bsz and not torch.is_grad_enabled():
            # Only training is split by tokens; trl's argument has the rows of an optimizer step.
            batch_size = self._spec.per_device_train_batch_size
        return super()._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, logits_to_keep, batch_size=batch_size, **kwargs
        )

    def _of_all_logits(self, model: Any, ids: torch.Tensor, mask: torch.Tensor, logits_to_keep: int) -> torch.Tensor:
        """Return log-probabilities as earlier releases of trl computed them."""
        selection = self._spec.logprobs.selection
        if selection is None:
            return full_logprobs(model, ids, logits_to_keep)
        return selective_logprobs(model, ids, mask, logits_to_keep, selection=selection, temperature=self.temperature)

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self._observer.enter(Phase.REWARD)
        return super()._calculate_rewards(*args, **kwargs)

    # ---- the critic --------------------------------------------------------------------------------------------------

    def create_optimizer(self, model: Any = None) -> Any:
        """Make the optimizer, and that of the critic by the same arguments."""
        found = super().create_optimizer(model)
        if self.critic is not None and self.critic.optimizer is None:
            self.optimizer = None
            self.critic.optimizer = Trainer.create_optimizer(self, self.critic.model)
            self.optimizer = found
        return found

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        batch: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if self.critic is not None:
            self._observer.enter(Phase.SCORE)
            self.critic.score(batch, self.accelerator.autocast)
        return batch

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """Return a micro-batch; a new generation updates the critic first, as verl updates it before the policy."""
        earlier = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        if self.critic is not None and self._buffered_inputs is not None and self._buffered_inputs is not earlier:
            self._observer.enter(Phase.CRITIC)
            for batch in self._buffered_inputs:
                self.critic.update(list(self._parts(batch)), self.accelerator.autocast)
        return inputs

    # ---- forward and backward ----------------------------------------------------------------------------------------

    def _loss(self, *args: Any) -> torch.Tensor:
        """The loss; offloaded by torch, because these trainers of trl have no offloading of their own."""
        if not self._spec.activation_offloading:
            return self._announced_loss(*args)
        # torch's functions of the accelerator say whether there is a card, and so whether memory is pinned.
        with save_on_cpu(pin_memory=True, device_type="accelerator"):
            return self._announced_loss(*args)

    def _micro_batch_loss(self, model: Any, inputs: Any, *rest: Any) -> torch.Tensor:
        """The loss; where rows are split into parts, the backward of all parts but the last is already done.

        The loss of trl is a sum over tokens, so that of the parts adds up to it.
        """
        if self._spec.logprobs is Logprobs.MINIBATCH:
            parts = [_row(inputs, row) for row in range(inputs["prompt_ids"].shape[0])]
        else:
            parts = self._parts(inputs)
            self.micro_batches_run += len(parts) - 1
        done = None
        for part in parts[:-1]:
            loss = self._loss(model, part, *rest)
            self.accelerator.backward(loss)
            done = loss.detach() if done is None else done + loss.detach()
            del loss
        last = self._loss(model, parts[-1], *rest)
        return last if done is None else last + done

    def _parts(self, inputs: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the micro-batches of what trl takes for one: itself, or with `use_dynamic_bsz` parts by tokens."""
        limit = self._spec.ppo_max_token_len_per_gpu
        return [inputs] if limit is None else split_by_tokens(inputs, limit)


class ProfiledGRPOTrainer(ProfiledGeneration, GRPOTrainer):
    """trl's `GRPOTrainer` with its phases announced."""


class ProfiledRLOOTrainer(ProfiledGeneration, RLOOTrainer):
    """trl's `RLOOTrainer` with its phases announced."""


def _row(inputs: dict[str, Any], row: int) -> dict[str, Any]:
    """One row of a micro-batch; what belongs to the whole batch (a scalar) stays."""
    return {
        key: value[row : row + 1] if isinstance(value, torch.Tensor) and value.dim() > 0 else value
        for key, value in inputs.items()
    }
