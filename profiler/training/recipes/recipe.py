"""The protocol of a recipe: what it makes of a trial's specification."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from datasets import Dataset
from peft import get_peft_model

from profiler.domain.memory import Phase
from profiler.domain.trials.trial import RowLengths, TrialSpec
from profiler.training.arguments import lora_config
from profiler.training.placement import Session


class AnnouncingTrainer(Protocol):
    """A trainer of trl that announces its phases to the session it was made for."""

    model: Any
    ref_model: Any
    """The separate reference model; None without."""
    critic: Any
    """The critic with its `model` and `optimizer`; None without."""
    args: Any
    state: Any
    micro_batches_run: int

    def train(self) -> Any:
        """Train to the last step."""


@dataclass(frozen=True, kw_only=True)
class TrainerParts:
    """What a recipe puts together into its trainer."""

    spec: TrialSpec
    session: Session
    arguments: Any
    """Of `TrainerRecipe.arguments`, on the session's device."""
    tokenizer: Any
    data: Dataset
    evaluated: Dataset | None = None
    """The rows that are evaluated."""
    referenced: Dataset | None = None
    """The rows over which a reference runs before training, where they are not those of training."""
    config: Any
    """transformers' configuration of the model."""
    model: Any
    """On the session's device, without adapters."""
    rows: RowLengths | None = None
    """Lengths of the rows, where they are not those of `spec`."""

    def of_trainer(self) -> dict[str, Any]:
        """Return the arguments that every trainer of rows takes."""
        return {
            **self.policy(),
            "observer": self.session,
            "args": self.arguments,
            "train_dataset": self.data,
            "eval_dataset": self.evaluated,
            "processing_class": self.tokenizer,
        }

    def policy(self) -> dict[str, Any]:
        """Return the model and peft's configuration; or as scripts do that wrap it themselves, the model with both."""
        adapters = lora_config(self.spec)
        if self.spec.ref_adapter:
            return {"model": get_peft_model(self.model, adapters), "peft_config": None}
        return {"model": self.model, "peft_config": adapters}


class TrainerRecipe(Protocol):
    """One way to train: the arguments, the data and the trainer of one trainer class of trl."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases that the trainer announces, in the order of a run. `Phase.LOAD` is the first."""

    def arguments(self, spec: TrialSpec, session: Session, output_dir: Path) -> Any:
        """Return trl's configuration. What `spec` does not name stays at trl's default."""

    def data(self, spec: TrialSpec, tokenizer: Any, rows: RowLengths | None = None) -> Dataset:
        """Return the training set, with as many rows as the trial's steps need.

        Args:
            spec: The trial.
            tokenizer: Its tokenizer.
            rows: Lengths of synthetic rows, where they are not those of `spec`.

        Raises:
            UsageError: The data set named by `spec` cannot be used.
            UnsupportedTrialError: The recipe's rows have no lengths of their own.
        """

    def trainer(self, parts: TrainerParts) -> AnnouncingTrainer:
        """Return the trainer, ready to train, with adapters and reference model."""
