"""What DeepSpeed's ZeRO-3 gathers of a model for each module, and ahead of it; and several streams.

Source: `PartitionedParameterCoordinator` in DeepSpeed 0.19's `runtime/zero/partitioned_param_coordinator.py`, the hooks
of modules in `parameter_offload.py`, and `AllGatherCoalescedHandle`, `_all_gather_dtype` and `_all_gather_sequential`
in `partition_parameters.py`.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace

from profiler.allocator.model.card_memory import AllocatorStats
from profiler.analytical.formulas.models.trained import BFLOAT16_BYTES
from profiler.analytical.replayed.requests import Requests
from profiler.analytical.timeline.sharding.zero import MOST_LIVE

_AHEAD = 50_000_000
"""Values that each module gathers ahead (`stage3_prefetch_bucket_size`)."""
_REUSED = 1_000_000_000
"""Values within which a weight that is needed again stays (`stage3_max_reuse_distance`)."""
_PERSISTENT = 100_000
"""Values of a weight that stays gathered (`stage3_param_persistence_threshold`)."""


class Streams:
    """Requests on several streams, each of which the allocator gives only blocks that it had before."""

    def __init__(self, *streams: Requests) -> None:
        """Begin with what the streams have."""
        self._streams = streams
        self._reserved_bytes = [0]
        """At the ends of the times between which the cache was emptied."""

    def empty_cache(self, alloc_conf: str) -> None:
        """Give back those of all streams. Until then their segments only grow in number, so that they are at once."""
        if len(self._streams) > 1:
            self._reserved_bytes.append(self._summed(alloc_conf).reserved_bytes)
        for each in self._streams:
            each.empty_cache()

    def counters(self, alloc_conf: str) -> AllocatorStats:
        """Return the sums of the counters of all streams; reserved memory is the largest sum at one instant."""
        found = self._summed(alloc_conf)
        if len(self._streams) == 1:
            return found
        return replace(found, peak_reserved_bytes=max(*self._reserved_bytes, found.reserved_bytes))

    def _summed(self, alloc_conf: str) -> AllocatorStats:
        parts = [each.counters(alloc_conf) for each in self._streams]
        names = (each.name for each in fields(AllocatorStats))
        return AllocatorStats(**{name: sum(getattr(part, name) for part in parts) for name in names})


@dataclass(eq=False)
class _Block:
    """Memory of a gathered weight, or of a buffer, and how many have it."""

    requests: Requests
    numbers: Iterable[int]
    holders: int = 1

    def drop(self) -> None:
        """Free it if nobody else has it."""
        self.holders -= 1
        if not self.holders:
            self.requests.free(self.numbers)


@dataclass(eq=False)
class Weight:
    """A weight of so many values, and what is there of it."""

    values: int
    is_trained: bool
    block: _Block | None = None
    gathering: "_Gathering | None" = None
    is_there: bool = False
    users: set["Module"] = field(default_factory=set)
    fetched_for: int = -1
    """The last step of the pass for which it has been fetched."""
    uses: list[int] = field(default_factory=list)
    """The steps of the recorded pass that need it."""

    @property
    def persists(self) -> bool:
        """Whether it stays once the order of modules is known."""
        return self.values <= _PERSISTENT

    @property
    def is_absent(self) -> bool:
        """Whether it is neither there nor on its way."""
        return not self.is_there and self.gathering is None


@dataclass(eq=False)
class Module:
    """A module, its own weights, and the modules in it, in the order in which they run."""

    weights: list[Weight] = field(default_factory=list)
    inner: "list[Module]" = field(default_factory=list)
    ends: bool = True
    """Whether DeepSpeed sees the end of its backward: not if its inputs are keywords, or need no gradient."""
    is_adapted: bool = False
    """Whether it is a linear layer with an adapter, without which the first module in it runs alone."""
    recomputed: set[Weight] = field(default_factory=set)
    """Frozen weights that a checkpoint recomputed with while this module was in backward."""
    saved: list[_Block] = field(default_factory=list)
    """Memory that a checkpoint's recomputation saves for backward."""

    @property
    def all_weights(self) -> list[Weight]:
        """Its weights, and those of the modules in it."""
        return [*self.weights, *(weight for each in self.inner for weight in each.all_weights)]


@dataclass(eq=False)
class _Gathering:
    """Weights that are gathered together, and their common buffer, or a copy of a part of the only one."""

    weights: list[Weight]
    buffer: _Block | None
    left: int
    is_complete: bool


class Memory:
    """The memory of gathered weights."""

    def __init__(self, requests: Requests, weights: Sequence[Weight], *, gpus: int, is_offloaded: bool) -> None:
        """Prepare it for `gpus` GPUs; `is_offloaded` if the host has the shards."""
        self._requests, self.weights, self._gpus, self._is_offloaded = requests, weights, gpus, is_offloaded
        self._live = 0
        """Values that were gathered in this pass."""

    def gather_all(self, requests: Requests, weights: Iterable[Weight]) -> None:
        """Gather weights one by one on another stream (`_allgather_params_coalesced`); copies of shards come first."""
        absent = [weight for weight in weights if weight.is_absent]
        copies = [number for weight in absent for number in self._copy(requests, weight)]
        for weight in absent:
            weight.block, weight.is_there = self._whole(requests, weight), True
        requests.free(copies)

    def drop(self, weights: Iterable[Weight]) -> None:
        """Free weights as they are (`partition`)."""
        for weight in weights:
            if weight.is_there:
                self._drop(weight)

    def part(self, weight: Weight) -> int:
        """Return the values of a weight that each GPU has."""
        return -(-weight.values // self._gpus)

    def _copy(self, requests: Requests, weight: Weight) -> Iterable[int]:
        """Copy the part of this GPU from the host; without other GPUs that copy is the weight."""
        is_copied = self._is_offloaded and self._gpus > 1 and not weight.persists
        return requests.allocate(self.part(weight) * BFLOAT16_BYTES) if is_copied else ()

    def _whole(self, requests: Requests, weight: Weight) -> _Block | None:
        """Make a gathered weight; one GPU uses its own."""
        if self._gpus == 1 and (weight.persists or not self._is_offloaded):
            return None
        return _Block(requests, requests.allocate(self.part(weight) * self._gpus * BFLOAT16_BYTES))

    def _gather(self, weights: list[Weight]) -> None:
        """Gather several weights to a buffer, and one to itself."""
        if not weights:
            return
        requests, is_direct = self._requests, len(weights) == 1 or self._gpus == 1
        self._live += sum(weight.values for weight in weights)
        if is_direct:
            for weight in weights:
                weight.block = self._whole(requests, weight)
            copy = self._copy(requests, weights[0])
            buffer = _Block(requests, copy) if copy else None
        else:
            buffer = _Block(requests, requests.allocate(sum(map(self.part, weights)) * self._gpus * BFLOAT16_BYTES))
            requests.free([number for weight in weights for number in self._copy(requests, weight)])
        gathering = _Gathering(weights, buffer, len(weights), is_complete=is_direct)
        for weight in weights:
            weight.gathering = gathering

    def _wait(self, weight: Weight) -> None:
        """Wait for a weight: all of its buffer are copied out then, and the buffer goes with the last of them."""
        gathering = weight.gathering
        if gathering is None:
            return
        if not gathering.is_complete:
            gathering.is_complete = True
            for each in gathering.weights:
                each.block = _Block(self._requests, self._requests.allocate(each.values * BFLOAT16_BYTES))
        weight.gathering, weight.is_there = None, True
        gathering.left -= 1
        if not gathering.left and gathering.buffer is not None:
            gathering.buffer.drop()

    def _free(self, weight: Weight) -> None:
        if weight.is_there and not weight.users:
            self._drop(weight)
            self._live -= weight.values

    def _drop(self, weight: Weight) -> None:
        if weight.block is not None:
            weight.block.drop()
        weight.block, weight.is_there = None, False


class Coordinator(Memory):
    """What DeepSpeed gathers of one model, on a stream of its own, and when it frees it."""

    def __init__(self, requests: Requests, weights: Sequence[Weight], *, gpus: int, is_offloaded: bool) -> None:
        """Prepare it; see `Memory`."""
        super().__init__(requests, weights, gpus=gpus, is_offloaded=is_offloaded)
        self._order: list[Module] = []
        self._before: list[int] = []
        """Values of the modules before each step of the recorded pass."""
        self._queue: deque[tuple[Weight, int]] = deque()
        self._recorded: list[tuple[Weight, int]] = []
        self._knows = self._records = False
        self._step = 0
        self._in_backward: dict[Module, None] = {}
        self._released: dict[tuple[Module, int], frozenset[Weight]] = {}

    def begin(self) -> None:
        """Begin a pass: the first after a change is recorded, and the next ones know its order (`reset_step`)."""
        self._drop_gathering()
        if not self._knows:
            if self._records:
                self._learn()
            self._knows, self._records = self._records, not self._records
        self._queue = deque(self._recorded)
        for weight in self.weights:
            weight.fetched_for = -1
        self._step = self._live = 0

    def _learn(self) -> None:
        """Keep the order of the modules that were recorded."""
        self._recorded = [(weight, step) for step, module in enumerate(self._order) for weight in module.weights]
        self._before = [0]
        for module in self._order:
            self._before.append(self._before[-1] + sum(weight.values for weight in module.weights))
        for weight in self.weights:
            weight.uses = []
        for weight, step in self._recorded:
            weight.uses.append(step)

    def forget(self) -> None:
        """Forget the order, as another module came than the next one (`_invalidate_trace`)."""
        self._knows = self._records = False
        self._order, self._recorded, self._queue = [], [], deque()
        self._drop_gathering()

    def _drop_gathering(self) -> None:
        for weight in self.weights:
            if weight.gathering is not None:
                self._wait(weight)
                self._free(weight)

    def fetch(self, module: Module, *, backward: bool = False, recomputes: bool = False) -> None:
        """Gather the weights of a module, and some of those that come next."""
        if self._knows and (self._step >= len(self._order) or self._order[self._step] is not module):
            self.forget()
        if self._records:
            self._order.append(module)
        if backward:
            self._in_backward[module] = None
        self._gather([weight for weight in module.weights if weight.is_absent])
        for weight in module.weights:
            weight.users.add(module)
            if recomputes and self._in_backward and not weight.is_trained:
                owner = next(reversed(self._in_backward))
                owner.recomputed.add(weight)
                weight.users.add(owner)
            self._wait(weight)
        if self._knows:
            self._gather_ahead(module)
        self._step += 1

    def _gather_ahead(self, module: Module) -> None:
        expected = sum(weight.fetched_for < self._step for weight in module.weights)
        for _ in range(min(expected, len(self._queue))):
            weight, step = self._queue.popleft()
            weight.fetched_for = step
        left, ahead = min(MOST_LIVE - self._live, _AHEAD), dict[Weight, None]()
        while self._queue and left > 0:
            weight, step = self._queue.popleft()
            weight.fetched_for = max(weight.fetched_for, step)
            if weight.is_absent and weight not in ahead:
                ahead[weight] = None
                left -= weight.values
        self._gather(list(ahead))

    def release(self, module: Module, *, backward: bool = False) -> None:
        """Free the weights of a module that has run, but for those that are needed soon."""
        freed = set(self._to_release(module) if self._knows else module.weights)
        if backward:
            freed |= {weight for weight in module.recomputed if not weight.persists}
            self._in_backward.pop(module, None)
        self._leave(module, freed, backward=backward)

    def end_backward(self) -> None:
        """Free the weights of modules whose backward has no end (`release_backward_leftovers`)."""
        while self._in_backward:
            module, _ = self._in_backward.popitem()
            every = (*module.weights, *module.recomputed)
            self._leave(module, {weight for weight in every if not weight.persists}, backward=True)

    def _leave(self, module: Module, freed: set[Weight], *, backward: bool) -> None:
        every = dict.fromkeys((*module.weights, *(module.recomputed if backward else ())))
        if backward:
            module.recomputed = set()
            for block in module.saved:
                block.drop()
            module.saved = []
        for weight in every:
            weight.users.discard(module)
            if weight in freed:
                self._free(weight)

    def _to_release(self, module: Module) -> frozenset[Weight]:
        """Return what a module frees; it is found once per step (`lru_cache`)."""
        key = module, self._step
        if key not in self._released:
            free = (weight for weight in module.weights if not weight.persists and weight.fetched_for <= self._step)
            self._released[key] = frozenset(weight for weight in free if not self._is_needed_soon(weight))
        return self._released[key]

    def _is_needed_soon(self, weight: Weight) -> bool:
        later = next((step for step in weight.uses if step >= self._step), None)
        return later is not None and self._before[later] - self._before[self._step] < _REUSED

    def save(self, module: Module) -> None:
        """Keep the weights of a module that is recomputed for its backward."""
        for weight in module.weights:
            if weight.block is not None and weight.is_trained:
                weight.block.holders += 1
                module.saved.append(weight.block)

    def reset(self) -> None:
        """Free everything before a step (`release_and_reset_all`)."""
        for weight in self.weights:
            self._wait(weight)
            weight.users.clear()
            self._free(weight)

    # ---- modules with those in them ----------------------------------------------------------------------------------

    def forward(
        self, module: Module, *, adapted: bool = True, recomputes: bool = False, read: Requests | None = None
    ) -> None:
        """Run a module and those in it; a linear layer reads its adapter before that runs, on the stream `read`."""
        self.fetch(module, recomputes=recomputes)
        if module.is_adapted and adapted and read is not None:
            self.find(read, module, module.inner[2].weights[0])
        for each in module.inner if adapted or not module.is_adapted else module.inner[:1]:
            self.forward(each, adapted=adapted, recomputes=recomputes, read=read)
        self.release(module)

    def find(self, requests: Requests, module: Module, weight: Weight) -> None:
        """Gather a weight that a module reads without running that of it; it is one of its own from then on."""
        self.gather_all(requests, [weight])
        if weight not in module.weights:
            module.weights.append(weight)

    def drop_all(self) -> None:
        """Free everything after a rollout: trl adds the hooks anew, which begins another order."""
        for weight in self.weights:
            weight.users.clear()
        self.drop(self.weights)
        self.forget()

    def backward(self, module: Module, recomputed: Module | None = None) -> Module | None:
        """Run the backward of a module; the first one without others begins with the recomputation of `recomputed`.

        Return what has not been recomputed yet.
        """
        self.fetch(module, backward=True)
        if recomputed is not None and not module.inner:
            self._recompute(recomputed, is_last=True)
            recomputed = None
        for each in reversed(module.inner):
            recomputed = self.backward(each, recomputed)
        if module.ends:
            self.release(module, backward=True)
        return recomputed

    def run_again(self, layer: Module) -> None:
        """Run a layer whole for its backward, at whose end its frozen weights are freed (reentrant checkpoints)."""
        self._in_backward[layer] = None
        self.forward(layer, recomputes=True)

    def _recompute(self, module: Module, *, is_last: bool) -> None:
        """Run a forward whose tensors are saved; it ends within the last module."""
        self.fetch(module, recomputes=True)
        self.save(module)
        for each in module.inner:
            self._recompute(each, is_last=is_last and each is module.inner[-1])
        if not is_last:
            self.release(module)
