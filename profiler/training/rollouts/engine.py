"""The protocol of a rollout engine."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol


class RolloutEngine(Protocol):
    """Generates completions for a trainer of trl."""

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments of trl's configuration that the engine needs."""

    def starting(self, *, model: Any, tokenizer: Any, folder: Path) -> AbstractContextManager[None]:
        """The context in which trl makes the trainer.

        Args:
            model: The model to train, without adapters.
            tokenizer: The trial's.
            folder: Where files of the trial may be written.
        """

    def generating(self, model: Any) -> AbstractContextManager[None]:
        """The context in which trl generates the completions of one batch.

        `model` is the transformers model itself, not a peft wrapper around it.
        """
