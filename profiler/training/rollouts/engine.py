"""The protocol of a rollout engine, and transformers' `generate`, unchanged, as one."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
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


_NEVER_SAMPLED = 2**31 - 1
"""Above every vocabulary. With None transformers takes the model's own id, and rows would end there."""


class GeneratedRollout:
    """Decodes every token."""

    def arguments(self) -> Mapping[str, Any]:
        """Return an end-of-sequence token that is never sampled.

        The specification decides the lengths of completions, so generation must not stop early. The id is used in
        generation only.
        """
        return {"generation_kwargs": {"eos_token_id": _NEVER_SAMPLED}}

    def starting(self, **_: Any) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()

    def generating(self, model: Any) -> AbstractContextManager[None]:  # noqa: ARG002  # part of the protocol
        """Do nothing."""
        return nullcontext()
