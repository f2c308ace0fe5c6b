"""The shapes of the micro-batches of an optimizer step, on which its memory depends."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """Rows that pass the model together, or in parts one after the other."""

    rows: int
    widths: tuple[int, ...]
    """Tokens to which the rows are padded: of the prompt and of the completion, or of the whole row."""
    scored: tuple[int, ...]
    """Of each part, tokens with a label or a mask of 1, without padding."""
    padded: tuple[bool, ...]
    """Of each part, whether a row is shorter than the widths."""


@dataclass(frozen=True, kw_only=True)
class StepShape:
    """One optimizer step."""

    micro_batches: tuple[MicroBatch, ...]
    """Those of training, in their order."""
    place: int = 0
    """Of the step among those that use one generation, from 0, at which completions are generated."""
    pads_prompts: bool = False
    """Whether completions are generated from prompts of unlike lengths."""
    scored_before: tuple[MicroBatch, ...] = ()
    """What is scored before training, in its order."""
