"""trl's `GRPOTrainer` and `RLOOTrainer`, unchanged in what they compute, that announce their phases.

Micro-batches by tokens: verl packs rows, so its limit (`ppo_max_token_len_per_gpu`) has no padding. trl pads: rows of
similar length share a part here, and padding counts.

Seams, each checked by a test against the installed trl: `_generate_single_turn`, `_get_per_token_logps_and_entropies`,
`_calculate_rewards`, `_generate_and_score_completions`, `_prepare_inputs`, `compute_loss` and `_last_loaded_step`;
those of transformers are in `announced_steps.py`.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.autograd.graph import save_on_cpu
from transformers import Trainer
from trl import GRPOTrainer, RLOOTrainer
from trl.trainer.utils import selective_log_softmax_and_entropy

from profiler.domain.memory import Phase
from profiler.domain.trials.trial import ENTROPY_TOKENS, Logprobs, RowLengths, Selection, TrialSpec, completion_lengths
from profiler.training.announced_steps import AnnouncedSteps, log_entropy
from profiler.training.placement import PhaseObserver
from profiler.training.recipes.grpo.critic import Critic
from profiler.training.rollouts.synthetic import RolloutEngine


def rows_by_tokens(lengths: Sequence[tuple[int, int]], most_tokens: int) -> list[list[int]]:
    """Return the rows of each part, the longest first.

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


def full_logprobs(model: Any, input_ids: torch.Tensor, logits_to_keep: int) -> torch.Tensor:
    """Return the log-probability of each of the last `logits_to_keep` tokens; shape [rows, logits_to_keep].

    The logits of the completion, [rows, logits_to_keep + 1, vocabulary], exist at once, and the log-softmax of each row
    is kept for backward. No attention mask is passed, so ragged rows do not change the attention kernel.

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
    compute_entropy: bool = True,
) -> torch.Tensor:
    """Return the log-probability of each of the last `logits_to_keep` tokens; shape [rows, logits_to_keep].

    The loss, of an evaluation too, computes the entropy of these tokens as well, which trl only logs.

    Source of the method: `_get_per_token_logps_and_entropies` of trl 0.16.0 to 1.14.2 in `trl/trainer/grpo_trainer.py`,
    `selective_log_softmax` in `trl/trainer/utils.py`. Its statements and names decide which tensors exist at once.
    """
    outputs = model(
        input_ids=input_ids, attention_mask=attention_mask, logits_to_keep=logits_to_keep + 1, use_cache=False
    )
    logits, ids = outputs.logits[:, :-1, :][:, -logits_to_keep:, :], input_ids[:, -logits_to_keep:]
    if selection.by_kernel:
        return selective_log_softmax_and_entropy(logits, ids, temperature=temperature)[0]
    if not selection.keeps_outputs:
        del outputs
    if selection.in_place:
        logits.div_(temperature)
    else:
        logits = logits / temperature
    found = _selected(logits, ids.unsqueeze(-1))
    if compute_entropy:
        log_entropy(logits, logits_to_keep if selection.entropy_by_row else ENTROPY_TOKENS)
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


_NO_TOKEN = -1  # The end of a sequence while rows are generated: a random model samples the real id by accident.


def shuffled_rows(lengths: RowLengths, generation: int, rows: int) -> list[int]:
    """Return the order in which trl splits the rows of a generation into micro-batches, if their lengths are given.

    trl shuffles them by `torch.randperm` (`shuffle_sequence_dict` in `trl/trainer/utils.py`); with given lengths each
    shuffle has a seed of its own.
    """
    return torch.randperm(rows, generator=torch.Generator().manual_seed(_seed(lengths, generation))).tolist()


def _seed(lengths: RowLengths, generation: int) -> int:
    return lengths.shuffles[generation % len(lengths.shuffles)] if lengths.shuffles else generation


class Completions:
    """The lengths of completions, generation by generation, of one of the processes."""

    def __init__(self, spec: TrialSpec, lengths: RowLengths | None = None, *, process: int = 0) -> None:
        self._spec, self._lengths, self._process = spec, lengths, process
        self._generated = self._generations = self._evaluations = self._evaluated = 0

    def evaluation_begins(self) -> range | None:
        """Begin an evaluation; return the places of its prompts, None if it has all of them."""
        self._evaluations += 1
        self._evaluated = 0
        known = self._lengths.evaluations if self._lengths else None
        return known.prompts_of(self._evaluations - 1) if known and known.samples else None

    def evaluated(self, rows: int) -> Sequence[int]:
        """Return the tokens of each of the next `rows` completions of an evaluation."""
        if self._lengths is None or (known := self._lengths.evaluations) is None:
            return [self._spec.max_completion_length] * rows
        start = self._evaluated
        self._evaluated += rows
        return known.completions_of(self._evaluations - 1)[start : start + rows]

    def following(self, rows: int) -> Sequence[int]:
        """Return the tokens of each of the next `rows` completions."""
        if self._lengths is None:
            longest = self._spec.max_completion_length
            return completion_lengths(lengths=self._spec.lengths, rows=rows, max_completion_length=longest)
        known = self._lengths.completions
        start = self._generated * self._spec.num_processes + self._process * rows
        self._generated += rows
        return [known[row % len(known)] for row in range(start, start + rows)]

    def is_loaded(self) -> bool:
        """Return whether vLLM is taken to have the weights at the next generation, as after an evaluation."""
        known = self._lengths.loaded if self._lengths is not None else ()
        return bool(known) and known[self._generated // self._spec.generation_batch_size % len(known)]

    def before_shuffle(self) -> None:
        """Let trl shuffle as `shuffled_rows` says, where lengths are given."""
        if self._lengths is not None:
            torch.manual_seed(_seed(self._lengths, self._generations))
            self._generations += 1


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
        completions: Completions,
        observer: PhaseObserver,
        rollout: RolloutEngine,
        critic: Critic | None = None,
        **trl_arguments: Any,
    ) -> None:
        self._spec = spec
        self._completions = completions
        self._rollout = rollout
        super().__init__(observer=observer, **trl_arguments)
        self.critic = critic

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate, with completions that have lengths of their own."""
        if (prompts := self._completions.evaluation_begins()) is not None:
            kwargs["eval_dataset"] = self.eval_dataset.select(prompts)
        return super().evaluate(*args, **kwargs)

    def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate one batch, and mark its begin and its end."""
        self._observer.enter(Phase.EVALUATION)
        found = super().prediction_step(*args, **kwargs)
        self._observer.enter(Phase.EVALUATION)
        return found

    # ---- rollout -----------------------------------------------------------------------------------------------------

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> Any:
        """Generate to the longest length, then cut each row: finished rows are computed to the end anyway.

        `GRPOTrainer` returns the log-probabilities of vLLM alongside the completions, `RLOOTrainer` the latter alone.
        """
        self._announce(Phase.ROLLOUT)
        base = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        if not self._evaluates and self._completions.is_loaded():
            self._last_loaded_step = self.state.global_step
        following = self._completions.evaluated if self._evaluates else self._completions.following
        lengths = following(len(prompt_ids))
        if not self._spec.use_vllm:
            self.generation_config.max_new_tokens = max(lengths)
        eos_token_ids = self.eos_token_ids
        self.eos_token_ids = [_NO_TOKEN]
        try:
            with self._rollout.generating(base, evaluates=self._evaluates):
                found = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        finally:
            self.eos_token_ids = eos_token_ids
        completions, *others = found if isinstance(found, tuple) else (found,)
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
            self._announce(Phase.SCORE)
        if self._spec.logprobs.makes_all_logits:
            rows = batch_size or input_ids.shape[0]
            parts = zip(input_ids.split(rows), attention_mask.split(rows), strict=True)
            keys = (logits_to_keep, kwargs.get("compute_entropy", False))
            with nullcontext() if self._spec.logprobs.ends_autocast else self.accelerator.autocast():
                logps = torch.cat([self._of_all_logits(model, *part, *keys) for part in parts])
            return logps, torch.zeros_like(logps, requires_grad=False), None
        if self._spec.logprobs is Logprobs.SLICED:
            batch_size = 1
        elif self._spec.use_dynamic_bsz and not torch.is_grad_enabled():
            # Only training is split by tokens; trl's argument has the rows of an optimizer step.
            batch_size = self._spec.per_device_train_batch_size
        return super()._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, logits_to_keep, batch_size=batch_size, **kwargs
        )

    def _of_all_logits(
        self, model: Any, ids: torch.Tensor, mask: torch.Tensor, logits_to_keep: int, compute_entropy: bool
    ) -> torch.Tensor:
        """Return log-probabilities as earlier releases of trl computed them."""
        selection = self._spec.logprobs.selection
        if selection is None:
            return full_logprobs(model, ids, logits_to_keep)
        return selective_logprobs(
            model,
            ids,
            mask,
            logits_to_keep,
            selection=selection,
            temperature=self.temperature,
            compute_entropy=compute_entropy,
        )

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self._announce(Phase.REWARD)
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
        if self._evaluates:
            return batch
        if self.critic is not None:
            self._observer.enter(Phase.SCORE)
            self.critic.score(batch, self.accelerator.autocast)
        self._completions.before_shuffle()
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
            parts = [_row_of_batch(inputs, row) for row in range(inputs["prompt_ids"].shape[0])]
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


def _row_of_batch(inputs: dict[str, Any], row: int) -> dict[str, Any]:
    """One row of a micro-batch; what belongs to the whole batch (a scalar) stays."""
    return {
        key: value[row : row + 1] if isinstance(value, torch.Tensor) and value.dim() > 0 else value
        for key, value in inputs.items()
    }
