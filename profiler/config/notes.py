"""What files of others leave open: assumptions, and what an estimate does not count."""

from collections.abc import Sequence
from dataclasses import dataclass

SIZES = ("per_device_train_batch_size", "num_generations", "max_completion_length", "max_length")
"""Keys of a trial without which an answer is of little use."""


@dataclass(frozen=True, kw_only=True)
class Note:
    """Something that a file does not say, or that is not counted."""

    key: str
    """The key of a trial that would settle it; empty if none would."""
    text: str
    is_counted: bool = True
    """Whether the estimate has it, by an assumption."""
    is_open: bool = False
    """Whether the file takes the value from elsewhere."""
    is_evaluation: bool = False
    """Whether it is about evaluations, which a forecast counts."""


def not_counted(text: str) -> Note:
    """Return a note about what the estimate leaves out."""
    return Note(key="", text=text, is_counted=False)


def note_lines(notes: Sequence[Note]) -> tuple[str, ...]:
    """Return what was assumed, and what is not counted, as one line each."""
    assumed = ", ".join(dict.fromkeys(note.text for note in notes if note.is_counted))
    missing = ", ".join(dict.fromkeys(note.text for note in notes if not note.is_counted))
    return tuple(line for line in (assumed and f"Assumed: {assumed}.", missing and f"Not counted: {missing}.") if line)
