"""Rollout token by token: transformers' `generate`, unchanged."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

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
