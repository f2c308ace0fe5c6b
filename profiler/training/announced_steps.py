"""Phases of an optimizer step that every trainer of transformers has, and the entropy that trl logs.

The phases are forward, backward and optimizer.

Seams, each checked by a test against the installed transformers: `compute_loss`, `_clip_grad_norm` and
`get_batch_samples` of its `Trainer`.
With DeepSpeed, accelerate's wrapper of the engine steps right after its backward.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from datasets import Dataset
from transformers import Trainer

from profiler.domain.memory import Phase
from profiler.training.placement import PhaseObserver


class AnnouncedSteps(Trainer):
    """Announces forward, backward and optimizer to `observer`. The first base of a recipe's trainer, before trl's."""

    critic: Any = None
    """The critic of a trial that has one."""

    def __init__(self, *, observer: PhaseObserver, **trl_arguments: Any) -> None:
        self._observer = observer
        self._evaluates = False
        self.micro_batches_run = 0
        super().__init__(**trl_arguments)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Return the loss of one micro-batch."""
        self.micro_batches_run += 1
        return self._micro_batch_loss(model, inputs, return_outputs, num_items_in_batch)

    def _micro_batch_loss(self, *args: Any) -> torch.Tensor:
        return self._announced_loss(*args)

    def _announced_loss(self, *args: Any) -> torch.Tensor:
        self._announce_engine()
        self._announce(Phase.FORWARD)
        loss = super().compute_loss(*args)
        # transformers runs backward as soon as it has the loss.
        self._announce(Phase.BACKWARD)
        return loss

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate: one phase, in which no micro-batch is counted. What follows it belongs to the optimizer."""
        counted, self._evaluates = self.micro_batches_run, True
        self._observer.enter(Phase.EVALUATION)
        try:
            return super().evaluate(*args, **kwargs)
        finally:
            self.micro_batches_run, self._evaluates = counted, False
            self._observer.enter(Phase.OPTIMIZER if self.state.global_step else Phase.LOAD)

    def _announce(self, phase: Phase) -> None:
        """Enter a phase of training; an evaluation has none of its own."""
        if not self._evaluates:
            self._observer.enter(phase)

    def _clip_grad_norm(self, model: Any) -> Any:
        self._observer.enter(Phase.OPTIMIZER)
        return super()._clip_grad_norm(model)

    def _announce_engine(self) -> None:
        """Announce the steps of DeepSpeed's engine, which exists once training has begun."""
        wrapper = getattr(self.accelerator, "deepspeed_engine_wrapped", None)
        if wrapper is not None and not isinstance(wrapper.engine, AnnouncedDeepSpeed):
            wrapper.engine = AnnouncedDeepSpeed(wrapper.engine, self._observer)


class AnnouncedRows(AnnouncedSteps):
    """Announces the steps of a trainer that reads rows of a data set.

    Seam: `get_batch_samples` of transformers' trainer.
    """

    ref_model: Any = None
    """There is no reference model unless trl makes one."""

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Load the micro-batches of one optimizer step; they belong to its forward phase."""
        self._observer.enter(Phase.FORWARD)
        return super().get_batch_samples(*args, **kwargs)


class AnnouncedReference(AnnouncedRows):
    """Announces the reference, within the loss or before training, as a phase of its own.

    Seams: `compute_ref_log_probs`, `_precompute_ref_logps` and `_prepare_dataset` of `DPOTrainer` and `KTOTrainer`.
    """

    def __init__(self, *, referenced: Dataset | None = None, **arguments: Any) -> None:
        """Make the trainer; before training a reference runs over `referenced`, or over the rows of training."""
        self._referenced = referenced
        super().__init__(**arguments)
        for model in (self.model, self.ref_model):
            if model is not None:
                model.register_forward_pre_hook(self._begins)
                model.register_forward_hook(self._ends)

    def _begins(self, *_: Any) -> None:
        """Begin the phase of the reference and of the KL term: what computes without gradient in training."""
        if self.model.training and not torch.is_grad_enabled():
            self._observer.enter(Phase.SCORE)

    def _ends(self, *_: Any) -> None:
        if self.model.training and not torch.is_grad_enabled():
            self._observer.enter(Phase.FORWARD)

    def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
        """Return the rows, which are tokens already."""
        return dataset

    def compute_ref_log_probs(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the reference of a batch before training."""
        self._observer.enter(Phase.SCORE)
        return super().compute_ref_log_probs(*args, **kwargs)

    def _precompute_ref_logps(self, dataset: Dataset, *args: Any, **kwargs: Any) -> Any:
        rows = self._referenced
        found = super()._precompute_ref_logps(dataset if rows is None else rows, *args, **kwargs)
        self._observer.enter(Phase.LOAD)
        if rows is None:
            return found
        for name in set(found.column_names) - set(rows.column_names):
            dataset = dataset.add_column(name, [0.0] * len(dataset))
        return dataset


class AnnouncedDeepSpeed:
    """DeepSpeed's engine as accelerate uses it, with its steps announced to `observer`."""

    def __init__(self, engine: Any, observer: PhaseObserver) -> None:
        self._engine = engine
        self._observer = observer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Update the weights."""
        self._observer.enter(Phase.OPTIMIZER)
        return self._engine.step(*args, **kwargs)


LeftOpen = Callable[[Callable[..., torch.Tensor], torch.Tensor, int], None]
"""Takes a function and its arguments instead of running it."""

_LEFT_TO: ContextVar[LeftOpen | None] = ContextVar("the entropy is left to", default=None)


@contextmanager
def entropy_left_to(left_open: LeftOpen) -> Iterator[None]:
    """While active, `log_entropy` leaves its work open: how many operations it has depends on the lengths of rows."""
    token = _LEFT_TO.set(left_open)
    try:
        yield
    finally:
        _LEFT_TO.reset(token)


@torch.no_grad()
def log_entropy(logits: torch.Tensor, tokens: int) -> None:
    """Compute `entropy` as trl does for its log."""
    left_open = _LEFT_TO.get()
    if left_open is None:
        entropy(logits, tokens)
    else:
        left_open(entropy, logits, tokens)


def entropy(logits: torch.Tensor, tokens: int) -> torch.Tensor:
    """[rows, tokens, vocabulary] -> [rows x tokens], of `tokens` tokens at once. Rows of a slice are copied first.

    Source of the method: `entropy_from_logits` in `trl/trainer/utils.py` up to trl 1.13.0.
    """
    parts = []
    for part in logits.reshape(-1, logits.shape[-1]).split(tokens):
        scores = part.log_softmax(dim=-1)
        parts.append(-(scores.exp() * scores).sum(-1))
    return torch.cat(parts)
