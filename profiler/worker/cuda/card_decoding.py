"""Long rollouts on an emulated card: most decoding steps repeat a part of the card's history.

Long rollouts on an emulated card: the allocations of most decoding steps are repeated instead of run.

The steps are found and compared as in the simulation (`simulation/extrapolation/`). What differs: the trace is the
history of torch's own allocator, and the events of the extrapolated steps are carried out on it, with blocks of the
same sizes in the same order. The tensors of the loop then continue in the blocks that the last step left.
"""

import gc
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from profiler.allocator.traces.trace import TraceBuilder
from profiler.domain.cards.gpu import Chip
from profiler.domain.memory import Category
from profiler.simulation.cuda.fused_attention.attention_scratch import more_keys_alike
from profiler.simulation.extrapolation.decode_extrapolator import DecodeExtrapolator, Growing
from profiler.simulation.extrapolation.left_out import StepsDifferError
from profiler.simulation.extrapolation.step_template import Template, continue_trace

_MOST_ENTRIES = 10_000_000
"""Of the history between two readings."""


class CardHistory:
    """Allocations and frees of a card since `start`, with the address of each block in use."""

    def __init__(self) -> None:
        self.trace = TraceBuilder()
        self.repeats_steps = False
        self._block_at: dict[int, int] = {}
        self.streams: set[int] = set()
        """Streams that blocks were allocated on."""

    def start(self) -> None:
        """Begin with the blocks that are in use."""
        self.trace, self._block_at, self.streams = TraceBuilder(), {}, set()
        _record()
        for segment in _snapshot()["segments"]:
            for block in segment["blocks"]:
                if block["state"] == "active_allocated":
                    self._block_at[block["address"]] = self.trace.allocate(block["requested_size"], Category.OTHER)

    def read(self) -> None:
        """Add what has happened since the last reading."""
        entries = _snapshot()["device_traces"][0]
        _record()
        for entry in entries:
            address = entry["addr"]
            if entry["action"] == "alloc":
                self._block_at[address] = self.trace.allocate(entry["size"], Category.OTHER)
                self.streams.add(entry["stream"])
            elif entry["action"] == "free_completed" and address in self._block_at:
                self.trace.free(self._block_at.pop(address))

    def skip(self) -> None:
        """Forget what has happened since the last reading."""
        _record()

    def end(self) -> None:
        """Record no more."""
        torch.cuda.memory._record_memory_history(enabled=None)

    def move(self, blocks: Mapping[int, tuple[int, int]]) -> None:
        """Replace blocks in use: by the address of the old one, the address and the number of the new one."""
        for address in blocks:
            del self._block_at[address]
        self._block_at.update(blocks.values())

    # ---- what the extrapolation reads --------------------------------------------------------------------------------

    def alike(self) -> int:
        """Return a number that sets no limit: the history does not know when scratch changes."""
        return 2**62

    def blocks_in_use(self) -> Mapping[int, int]:
        """Return the number of each block in use, by its address."""
        return self._block_at

    def renumber(self, blocks: Mapping[int, int]) -> None:
        """Do nothing: `move` has done it."""


def _record() -> None:
    """Record from here on, without stacks."""
    torch.cuda.memory._record_memory_history(context=None, max_entries=_MOST_ENTRIES, clear_history=True)


def _snapshot() -> dict[str, Any]:
    return torch.cuda.memory._snapshot()


MOST_DECODED_IN_FULL = 256
"""Completions of up to this many tokens are decoded token by token, which takes seconds."""


@dataclass(kw_only=True)
class _Owner:
    """The tensors on one storage, with its values where the host may read them."""

    tensors: list[torch.Tensor]
    values: torch.Tensor | None
    """Of a growing tensor in its shape, of others all bytes; None for floats."""
    growing: int | None
    """The dimension that grows; None if none does."""


class CardDecoding(DecodeExtrapolator):
    """Extrapolates decoding steps on an emulated card. Raises `StepsDifferError` after an extrapolation mismatch."""

    most_rollouts = sys.maxsize

    def __init__(self, chip: Chip) -> None:
        self._history = CardHistory()
        super().__init__(self._history)
        self._chip = chip
        self._heads = 0
        self._owners: dict[int, _Owner] = {}

    def attends_with(self, heads: int) -> None:
        """Keep the number of attention heads of the model that decodes."""
        self._heads = heads

    def rollout_begins(self) -> None:
        """Start a rollout."""
        self._history.start()
        super().rollout_begins()

    def step_begins(self) -> bool:
        """Start a step. Return False if the steps that ran since the extrapolation differ from the prediction."""
        self._history.read()
        return super().step_begins()

    def repeat(self, steps: int, growing: Growing) -> int:
        """Extrapolate up to `steps` steps if their pattern is known, and lengthen `growing`; return how many."""
        growing = list(growing)
        keys = [tensor for tensor, dimension in growing if tensor.dim() == 4 and dimension == 2]
        self._alike = min((self._steps_alike(each) for each in keys), default=0)
        return super().repeat(steps, growing) if len(self._history.streams) == 1 else 0

    def rollout_ends(self) -> bool:
        """End a rollout. Return False if its last steps differ from the prediction."""
        self._history.read()
        self._history.end()
        return super().rollout_ends()

    def undo(self) -> None:
        """Raise: what a card has allocated cannot be undone.

        Raises:
            StepsDifferError: Always.
        """
        raise StepsDifferError("the decoding steps after extrapolated ones differ from the prediction")

    def _steps_alike(self, keys: torch.Tensor) -> int:
        """Return the steps until the attention over `keys` may take other scratch blocks."""
        rows, heads, tokens, head_dim = keys.shape
        query = torch.Size((rows, self._heads or heads, 1, head_dim))
        return more_keys_alike(query, torch.Size((rows, heads, tokens, head_dim)), chip=self._chip)

    def _key(self, storage: torch.UntypedStorage) -> int:
        return storage.data_ptr()

    def all_known(self, template: Template, growing: list[tuple[torch.Tensor, int]], length: int) -> bool:
        """Whether every block that outlives a step belongs to tensors of Python, and `growing` are those that grow."""
        if not super().all_known(template, growing, length):
            return False
        first = self._positions[-1][1] - template.memory * template.blocks
        addresses = {address for address, block in self._history.blocks_in_use().items() if block >= first}
        self._owners = _owners(addresses, {tensor.data_ptr(): at for tensor, at in growing})
        return self._owners.keys() == addresses

    def _continue(
        self,
        template: Template,
        cycles: int,
        growing: list[tuple[torch.Tensor, int]],
        renumbered: Mapping[int, int],
        *,
        steps: int,
    ) -> None:
        """Carry out the events of `cycles` more cycles, and let the tensors continue in the blocks of the last."""
        del growing  # `_owners` has them
        history = self._history
        start = len(history.trace.events)
        continue_trace(history.trace, template, cycles)
        owner_of = {history.blocks_in_use()[address]: owner for address, owner in self._owners.items()}
        shapes = {id(tensor): _shape(tensor, owner, steps) for owner in owner_of.values() for tensor in owner.tensors}
        made = _carry_out(history.trace.events[start:], history.trace.sizes_bytes, owner_of)
        moved = {}
        for address, owner in self._owners.items():
            number = renumbered[history.blocks_in_use()[address]]
            block = made.pop(number)
            _put(owner, block, shapes, steps)
            moved[address] = (block.data_ptr(), number)
        if made:
            raise StepsDifferError("extrapolated decoding steps leave blocks that no tensor has")
        history.move(moved)
        self._owners = {}
        history.skip()


def _owners(addresses: set[int], growing: Mapping[int, int]) -> dict[int, _Owner]:
    """Return the tensors on the storages at `addresses`, where all users of the storage are known."""
    found: dict[int, list[torch.Tensor]] = {}
    for each in gc.get_objects():
        if type(each) is torch.Tensor and each.is_cuda and (address := each.untyped_storage().data_ptr()) in addresses:
            found.setdefault(address, []).append(each)
    return {
        address: _Owner(tensors=tensors, values=_values(tensors, address in growing), growing=growing.get(address))
        for address, tensors in found.items()
        if _are_all(tensors) and (address not in growing or len(tensors) == 1)
    }


def _are_all(tensors: list[torch.Tensor]) -> bool:
    """Whether nothing else keeps the storage of `tensors`."""
    storage = tensors[0].untyped_storage()
    users: int = torch._C._storage_Use_Count(storage._cdata)
    return users == len(tensors) + 1


def _values(tensors: list[torch.Tensor], is_growing: bool) -> torch.Tensor | None:
    if tensors[0].is_floating_point():
        return None
    return tensors[0].cpu() if is_growing else _bytes(tensors[0].untyped_storage()).cpu()


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _shape(tensor: torch.Tensor, owner: _Owner, steps: int) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Return offset, size and stride that a tensor has after `steps` more steps."""
    if owner.growing is None:
        return int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride()
    shape = list(tensor.shape)
    shape[owner.growing] += steps
    return 0, tuple(shape), torch.empty(shape, device="meta").stride()


def _carry_out(events: list[int], sizes: list[int], owner_of: Mapping[int, _Owner]) -> dict[int, torch.Tensor]:
    """Allocate and free as `events` say, and return the blocks that are left, by number."""
    made: dict[int, torch.Tensor] = {}
    for event in events:
        block = abs(event) - 1
        if event > 0:
            made[block] = torch.empty(sizes[block], dtype=torch.uint8, device="cuda")
        elif block in made:
            del made[block]
        else:
            with torch.no_grad():
                for tensor in owner_of[block].tensors:
                    tensor.set_()  # type: ignore[call-overload]
    return made


def _put(owner: _Owner, block: torch.Tensor, shapes: Mapping[int, Any], steps: int) -> None:
    """Let tensors continue in `block`."""
    with torch.no_grad():
        for tensor in owner.tensors:
            tensor.set_(block.untyped_storage(), *shapes[id(tensor)])
        if owner.values is None:
            return
        if owner.growing is None:
            block.copy_(owner.values)
        else:
            owner.tensors[0].copy_(_longer(owner.values, owner.growing, steps))


def _longer(values: torch.Tensor, dimension: int, by: int) -> torch.Tensor:
    """Append `by` values: positions go on counting, and everything else repeats its last value."""
    last = values.narrow(dimension, -1, 1)
    counts = values.dtype is not torch.bool and bool((last - values.narrow(dimension, -2, 1) == 1).all())
    return torch.cat([values, *(last + time * counts for time in range(1, by + 1))], dim=dimension)
