"""An optimizer step: the shapes of its micro-batches, the work that is counted, its memory as arrays, its requests."""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Self, overload

from profiler.domain.cards.card import Roofline
from profiler.domain.memory import Category, Phase
from profiler.domain.runs.readings import CategoryShare, StepInstant


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """Rows that pass the model together, or in parts one after the other."""

    rows: int
    widths: tuple[int, ...]
    """Tokens to which the rows are padded: of the prompt and of the completion, or of the whole row."""
    scored: tuple[int, ...]
    """Of each part, tokens that are predicted and have a label or a mask of 1; of preferences, those of the chosen, or
    good, completions and those of the others."""
    padded: tuple[bool, ...]
    """Of each part, whether a row is shorter than the widths."""
    chosen: int = 0
    """Rows with a chosen, or good, completion; 0 where rows are no preferences."""
    neighbours: "MicroBatch | None" = None
    """The same prompts, each with the completion of its neighbour, for a KL term."""


@dataclass(frozen=True, kw_only=True)
class StepLengths:
    """One optimizer step."""

    micro_batches: tuple[MicroBatch, ...]
    """Those of training, in their order."""
    place: int = 0
    """Of the step among those that use one generation, from 0, at which completions are generated."""
    pads_prompts: bool = False
    """Whether completions are generated from prompts of unlike lengths."""
    scored_before: tuple[MicroBatch, ...] = ()
    """What is scored before training, in its order."""
    ended: int | None = None
    """Completions that end before the longest one, of which trl logs the lengths; None where none are generated."""
    is_loaded: bool = False
    """Whether vLLM has the weights already at the generation."""
    batches: tuple["StepLengths", ...] = ()
    """Of the evaluation after the step, each batch with the completions that it generates, as one micro-batch; an
    evaluation by itself has no `micro_batches`."""
    batches_together: int | None = None
    """Of an evaluation: batches after which their losses leave the card, and its cache is emptied; None: all."""


@dataclass(frozen=True)
class Cost:
    """One operation of the card."""

    flops: int
    moved_bytes: int
    """Its arguments and results, each read or written once."""
    is_half: bool
    """Whether its products are of 16-bit numbers."""

    def seconds(self, card: Roofline) -> float:
        """Return the least time in which `card` can do it."""
        peak = card.half_flops_per_s if self.is_half else card.single_flops_per_s
        return max(self.flops / peak, self.moved_bytes / card.memory_bytes_per_s)


@dataclass(frozen=True, kw_only=True)
class PhaseWork:
    """The work of one phase in one optimizer step."""

    phase: Phase
    operations: Mapping[Cost, int]
    """How often each cost occurs."""
    to_host_bytes: int = 0
    from_host_bytes: int = 0
    has_own_stream: bool = False
    """Whether copies between host and card run next to the computation, and not in turn with it."""

    @property
    def flops(self) -> int:
        """All floating-point operations."""
        return sum(cost.flops * times for cost, times in self.operations.items())

    @property
    def moved_bytes(self) -> int:
        """All bytes that operations read and write in the card's memory."""
        return sum(cost.moved_bytes * times for cost, times in self.operations.items())

    def seconds(self, card: Roofline) -> float:
        """Return a lower bound of its time on `card`: no operation is faster, and each direction of the link is used.

        Caches of the card, which are left out, can serve small operations faster.
        """
        computed = sum(cost.seconds(card) * times for cost, times in self.operations.items())
        copied = max(self.to_host_bytes, self.from_host_bytes) / card.link_bytes_per_s
        return max(computed, copied) if self.has_own_stream else computed + copied


PHASES, CATEGORIES = tuple(Phase), tuple(Category)
"""The members that the codes of a shape count, in their own order."""

_PHASE_CODES = {phase: code for code, phase in enumerate(PHASES)}
_CATEGORY_CODES = {category: code for code, category in enumerate(CATEGORIES)}


class StepShape(Sequence[StepInstant]):
    """A sequence of instants, equal to the tuple of them. An instant is made when it is asked for."""

    __slots__ = ("categories", "lengths", "phases", "sizes_bytes")

    def __init__(self, *, phases: bytes, lengths: bytes, categories: bytes, sizes_bytes: "array[int]") -> None:
        """Take the arrays as they are.

        Args:
            phases: Code of the phase of each instant.
            lengths: Number of categories of each instant.
            categories: Code of each category, instant by instant.
            sizes_bytes: Size of each category, in the same order; an array of 64-bit integers.
        """
        self.phases, self.lengths, self.categories, self.sizes_bytes = phases, lengths, categories, sizes_bytes

    @classmethod
    def of(cls, instants: Iterable[StepInstant]) -> Self:
        """Return the shape of `instants`.

        Raises:
            ValueError: An instant has more than 255 categories.
            OverflowError: A size does not fit in 64 bits.
        """
        found = tuple(instants)
        shares = [share for instant in found for share in instant.shares]
        return cls(
            phases=bytes(_PHASE_CODES[instant.phase] for instant in found),
            lengths=bytes(len(instant.shares) for instant in found),
            categories=bytes(_CATEGORY_CODES[share.category] for share in shares),
            sizes_bytes=array("q", [share.size_bytes for share in shares]),
        )

    def __len__(self) -> int:
        return len(self.phases)

    def __iter__(self) -> Iterator[StepInstant]:
        ends = accumulate(self.lengths)
        return (
            self._instant(phase, end - length, end)
            for phase, length, end in zip(self.phases, self.lengths, ends, strict=True)
        )

    @overload
    def __getitem__(self, place: int) -> StepInstant: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[StepInstant]: ...
    def __getitem__(self, place: int | slice) -> StepInstant | Sequence[StepInstant]:
        return tuple(self)[place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StepShape | tuple) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def _instant(self, phase: int, start: int, end: int) -> StepInstant:
        sizes = zip(self.categories[start:end], self.sizes_bytes[start:end], strict=True)
        shares = tuple(CategoryShare(category=CATEGORIES[code], size_bytes=size) for code, size in sizes)
        return StepInstant(phase=PHASES[phase], shares=shares)


@dataclass(frozen=True, kw_only=True)
class LargeRequest:
    """Equal requests of one phase of a trial, from one place."""

    phase: Phase
    size_bytes: int
    operation: str
    shape: tuple[int, ...]
    dtype: str
    module: str
    allocated_bytes: int
    """Memory in use at one of them: the nearest to that of an error."""
