"""An out-of-memory error of a log: its phase, its tensor, and whether memory or one piece of memory was missing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from profiler.allocator import AllocatorConfig
from profiler.allocator.oom_message import OomMessage, OomReport
from profiler.allocator.refusal import size_text
from profiler.allocator.sizes import block_bytes, segment_bytes
from profiler.analytical.explanation.tensors import NamedTensor
from profiler.domain.gpu import KNOWN_GPUS, Gpu
from profiler.domain.memory import Phase
from profiler.domain.units import GIB, gib_text

_ROUNDING_BYTES = GIB // 200
"""Half of the last digit of a size in GiB as torch prints it."""

_OTHERS_PART = 0.02
"""Part of a card from which the memory of other processes is worth a word."""


class Cause(StrEnum):
    """Why a request was refused."""

    NEED = "need"
    """The card has too little memory for what was in use and the request."""
    FRAGMENTS = "fragmentation"
    """There was enough memory, but not in one piece."""
    OTHERS = "other processes"
    """There would have been enough memory without the other processes on the card."""
    UNKNOWN = "unknown"
    """The message does not have the sizes."""


@dataclass(frozen=True, kw_only=True)
class Explained:
    """Why the card refused a request."""

    cause: Cause
    sentence: str


_FUNCTIONS: tuple[tuple[Phase, frozenset[str]], ...] = (
    (Phase.EVALUATION, frozenset({"evaluate", "evaluation_loop", "prediction_step"})),
    (Phase.OPTIMIZER, frozenset({"optimizer_step", "clip_grad_norm_", "_optimizer_step", "adamw"})),
    (Phase.BACKWARD, frozenset({"backward", "_engine_run_backward"})),
    (Phase.ROLLOUT, frozenset({"generate", "_sample", "_generate_single_turn"})),
    (Phase.REWARD, frozenset({"_calculate_rewards"})),
    (Phase.SCORE, frozenset({"_generate_and_score_completions"})),
    (Phase.FORWARD, frozenset({"compute_loss", "_compute_loss"})),
    (Phase.LOAD, frozenset({"from_pretrained", "_load_pretrained_model", "_move_model_to_device", "get_peft_model"})),
)
"""Functions of trl, transformers and torch that run in one phase only. The first that a traceback has counts."""


def phase_of(functions: Iterable[str]) -> Phase | None:
    """Return the phase in which a traceback ends; None if it names none."""
    names = set(functions)
    return next((phase for phase, known in _FUNCTIONS if names & known), None)


def explained(message: OomMessage) -> Explained:
    """Return why the request was refused.

    By hand, 1.90 GiB requested, 1.28 free and 2.41 cached but unused: 3.69 GiB were there, in pieces.
    """
    requested, unused, free = message.requested_bytes, message.unallocated_bytes, message.free_bytes
    if requested is None or unused is None or free is None:
        return Explained(cause=Cause.UNKNOWN, sentence="The message does not say how much memory was free.")
    there, others = free + unused, message.others_bytes or 0
    parts = f"{gib_text(free, 2)} free and {gib_text(unused, 2)} cached but unused"
    if requested <= there:
        said = f"{gib_text(there, 2)} ({parts}) were enough for {message.requested_text}, but not in one piece."
        return Explained(cause=Cause.FRAGMENTS, sentence=f"Fragmentation: {said}")
    missing = gib_text(requested - there, 2)
    if message.total_bytes is not None and others > _OTHERS_PART * message.total_bytes:
        said = f"other processes had {gib_text(others, 2)} of the card, and {missing} were missing."
        cause = Cause.OTHERS if requested - there <= others else Cause.NEED
        return Explained(cause=cause, sentence=f"{cause.value.capitalize()}: {said}")
    said = f"with all that was left ({parts}), {missing} were missing for {message.requested_text}."
    return Explained(cause=Cause.NEED, sentence=f"Need: {said}")


def card_of(message: OomMessage) -> Gpu | None:
    """Return the known card with the memory that the message states; None if there is none."""
    total = message.total_bytes
    if total is None:
        return None
    near = [card for card in KNOWN_GPUS.values() if abs(card.memory_bytes - total) <= 2 * _ROUNDING_BYTES]
    return min(near, key=lambda card: abs(card.memory_bytes - total), default=None)


Tensor = TypeVar("Tensor")


def matching(message: OomMessage, tensors: Sequence[NamedTensor]) -> tuple[NamedTensor, ...]:
    """Return the tensors whose request torch would print as the message does."""
    return tuple(each for each in tensors if asks_for(each.size_bytes, message))


def asks_for(size_bytes: int, message: OomMessage) -> bool:
    """Return whether torch prints a refused request of `size_bytes` as the message does: as a segment, two digits."""
    block = block_bytes(max(1, size_bytes), AllocatorConfig())
    texts = {size_text(size_bytes), size_text(segment_bytes(block, AllocatorConfig()))}
    return message.requested_text in texts


def nearest_tensor(message: OomMessage, tensors: Sequence[NamedTensor]) -> NamedTensor | None:
    """Return the tensor of this version of trl whose size is nearest to the request."""
    if message.requested_bytes is None:
        return None
    asked = message.requested_bytes
    own = [each for each in tensors if each.happens]
    return min(own, key=lambda each: abs(each.size_bytes - asked), default=None)


def positions_of_logits(message: OomMessage, *, rows: int, vocabulary: int) -> int | None:
    """Return the positions per row for which float32 logits have the size of the request; None if it is none.

    By hand, 1.90 GiB, 4 rows, 128,256 entries: 994.
    """
    if message.requested_bytes is None:
        return None
    positions = round(message.requested_bytes / (4 * rows * vocabulary))
    return positions if positions > 1 and asks_for(rows * positions * vocabulary * 4, message) else None


def where_text(report: OomReport) -> str:
    """Return the phase that the traceback of a report names, as a clause; empty if it names none."""
    phase = phase_of(report.functions)
    return f" in {phase.value}, by its traceback" if phase is not None else ""
