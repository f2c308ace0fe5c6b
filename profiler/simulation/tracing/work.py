"""Counting the work of the simulated GPU: floating-point operations by torch's formulas, and bytes of operations."""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import flop_counter

from profiler.domain.memory import Phase
from profiler.domain.runs.step_shape import Cost, PhaseWork

_COUNTED = (Phase.SCORE, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
"""Phases whose operations all run; most of those of a rollout are extrapolated."""

_READS_ROWS = ("embedding", "index", "index_select", "gather", "slice_backward")
"""Operations that read no more of their first argument than they return."""


@dataclass
class _Work:
    """The work of one phase so far."""

    operations: Counter[Cost] = field(default_factory=Counter)
    to_host_bytes: int = 0
    from_host_bytes: int = 0
    has_own_stream: bool = False


class WorkCounter:
    """Counts the operations of each optimizer step."""

    def __init__(self) -> None:
        self._steps: list[dict[Phase, _Work]] = [{}]
        self._phase = Phase.LOAD
        self._costs: dict[Hashable, Cost | None] = {}

    def enter(self, phase: Phase) -> None:
        """Begin `phase`; after an optimizer's step the next one begins."""
        if self._phase is Phase.OPTIMIZER and phase is not Phase.OPTIMIZER:
            self._steps.append({})
        self._phase = phase

    def operation(
        self, key: Hashable, func: Any, args: Any, kwargs: Any, tensors: Sequence[torch.Tensor], result: Any
    ) -> None:
        """Count one operation; `key` is equal for equal costs."""
        if self._phase not in _COUNTED:
            return
        if key not in self._costs:
            self._costs[key] = _cost(func, args, kwargs, tensors, result)
        if (cost := self._costs[key]) is not None:
            self._work().operations[cost] += 1

    def product(self, flops: int, tensors: Iterable[torch.Tensor]) -> None:
        """Count a kernel that no operation stands for."""
        if self._phase in _COUNTED:
            found = list(tensors)
            self._work().operations[Cost(flops, sum(map(_bytes, found)), _is_half(found))] += 1

    def copied(self, *, to_host_bytes: int = 0, from_host_bytes: int = 0, stream: int) -> None:
        """Count a copy between the card and pinned memory."""
        if self._phase not in _COUNTED:
            return
        work = self._work()
        work.to_host_bytes += to_host_bytes
        work.from_host_bytes += from_host_bytes
        work.has_own_stream |= stream != 0

    def last_step(self) -> tuple[PhaseWork, ...]:
        """Return the work of the last step that ran to its end."""
        done = [step for step in self._steps if Phase.OPTIMIZER in step]
        if not done:
            return ()
        return tuple(
            PhaseWork(
                phase=phase,
                operations=dict(work.operations),
                to_host_bytes=work.to_host_bytes,
                from_host_bytes=work.from_host_bytes,
                has_own_stream=work.has_own_stream,
            )
            for phase, work in done[-1].items()
        )

    def _work(self) -> _Work:
        return self._steps[-1].setdefault(self._phase, _Work())


def product_flops(left: torch.Tensor, right: torch.Tensor) -> int:
    """Return torch's count of a product of two matrices."""
    return int(flop_counter.mm_flop(left, right))


def attention_flops(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, gradient: torch.Tensor | None = None
) -> int:
    """Return torch's count of fused attention, or of its backward: masked positions count as others."""
    shapes = (query.shape, key.shape, value.shape)
    if gradient is None:
        return int(flop_counter.sdpa_flop_count(*shapes))
    return int(flop_counter.sdpa_backward_flop_count(gradient.shape, *shapes))


def _cost(func: Any, args: Any, kwargs: Any, tensors: Sequence[torch.Tensor], result: Any) -> Cost | None:
    """Return the cost of one operation; None if it does nothing on the card."""
    made = _tensors_of(result)
    written = [tensor for tensor, changes in zip(tensors, _changed(func, args, kwargs), strict=True) if changes]
    storages = {tensor.untyped_storage()._cdata for tensor in tensors}
    new = [tensor for tensor in made if tensor.untyped_storage()._cdata not in storages]
    name = func.overloadpacket.__name__
    if "empty" in name or not (new or written):
        return None
    read = made if name in _READS_ROWS else tensors
    formula = flop_counter.flop_registry.get(func.overloadpacket)
    flops = 0 if formula is None else int(formula(*args, **kwargs, out_val=result))
    return Cost(flops, sum(map(_bytes, (*read, *new, *written))), _is_half(tensors))


def _changed(func: Any, args: Any, kwargs: Any) -> list[bool]:
    """Return, for each tensor among the arguments in order, whether the operation writes into it."""
    found: list[bool] = []
    declared = {argument.name: argument for argument in func._schema.arguments}
    for argument, value in (
        *zip(func._schema.arguments, args, strict=False),
        *((declared[k], v) for k, v in kwargs.items()),
    ):
        writes = argument.alias_info is not None and argument.alias_info.is_write
        found += [writes] * len(_tensors_of(value))
    return found


def _tensors_of(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in _tensors_of(item)]
    return []


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _is_half(tensors: Sequence[torch.Tensor]) -> bool:
    return any(tensor.dtype in (torch.bfloat16, torch.float16) for tensor in tensors)
