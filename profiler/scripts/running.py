"""A run of a script in this process, as `python script.py` would run it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Script:
    """A script with its arguments, and after how many optimizer steps it is ended."""

    path: Path
    arguments: Sequence[str]
    steps: int | None
    """None lets it run to its end."""


@dataclass(frozen=True, kw_only=True)
class ScriptEnd:
    """How a script ended, and how much it trained."""

    exit_code: int
    """0 if it was ended after its steps."""
    ended_by_steps: bool
    steps_run: int
    backwards_run: int
    """Backward passes: of a plain loop, micro-batches."""
    parameters: int | None
    """Parameters of the modules that ran with gradient; None if none did."""
    trainable_parameters: int | None
