"""An out-of-memory error of a log: its phase, its card and its tensor."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from profiler.allocator import AllocatorConfig
from profiler.allocator.model.card_memory import size_text
from profiler.allocator.oom_message import OomMessage, OomReport
from profiler.allocator.settings import block_bytes, segment_bytes
from profiler.analytical.explanation.tensors import NamedTensor
from profiler.domain.cards.gpu import KNOWN_GPUS, Gpu
from profiler.domain.memory import GIB, Phase

_ROUNDING_BYTES = GIB // 200
"""Half of the last digit of a size in GiB as torch prints it."""

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
