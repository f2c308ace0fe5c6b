"""What files of others leave open: assumptions, and what an estimate does not count.

Of values that change memory and that no formula has, each is named, with its direction. A row says which values change
nothing. Tables of rows stand next to what reads the file: `trl/effects.py`, `files/companion_files.py`,
`models/fields.py`. Tests walk the installed classes and fail on a field that is in no table.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from profiler.config.options.reading import show
from profiler.domain.trials.trial import Attention

SIZES = ("per_device_train_batch_size", "num_generations", "max_completion_length", "max_length")
"""Keys of a trial without which an answer is of little use."""


DECIDES = ("tuning", "lora_rank", "lora_target_modules", "dtype", "gradient_checkpointing", "use_vllm", "beta")
"""Keys of a trial that decide memory next to its sizes."""


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


_KERNEL = re.compile(r"(?:[\w.-]+/)?[\w.-]*flash[_-]?att(?:entio)?n[\w.-]*(?:[@:][\w.-]+)*")
COUNTED_ATTENTION = Attention.FLASH_ATTENTION_2
"""As what later FlashAttentions and those of the hub are counted: transformers calls them in the same way.

Source: `is_flash_attention_requested` in `utils/generic.py` and `FLASH_ATTN_KERNEL_FALLBACK` in
`modeling_flash_attention_utils.py` of 5.23.
"""


def kernel_notes(values: Mapping[str, object]) -> Iterator[Note]:
    """Return the note of an attention that is counted as another one; none for others."""
    key = "attn_implementation"
    stated = values.get(key)
    if isinstance(stated, str) and stated != COUNTED_ATTENTION and _KERNEL.fullmatch(stated):
        yield Note(key=key, text=f"{key}={COUNTED_ATTENTION} ({stated} is counted as it)")


class Direction(StrEnum):
    """How far off an estimate may be that leaves a value out."""

    LOW = "the figure may be too low"
    HIGH = "the figure may be too high"
    EITHER = "the figure may be too low or too high"


@dataclass(frozen=True, kw_only=True)
class Uncounted:
    """A key with values that are named instead of counted."""

    what: str
    """What such a value does, as the end of a sentence about it."""
    direction: Direction
    neutral: tuple[object, ...] = ()
    """Values that change nothing, as null does."""


def uncounted_texts(
    table: Mapping[str, Uncounted], values: Mapping[str, object], *, prefix: str = ""
) -> tuple[str, ...]:
    """Return one text per value that is stated of `table` that changes memory and is not counted."""
    return tuple(
        f"{prefix}{key}={show(values[key])} ({row.what}: {row.direction})"
        for key, row in table.items()
        if values.get(key) is not None and not _is_neutral(values[key], row.neutral)
    )


def _is_neutral(value: object, neutral: tuple[object, ...]) -> bool:
    """Return whether `value` is one of `neutral`; true is no 1."""
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in neutral)
