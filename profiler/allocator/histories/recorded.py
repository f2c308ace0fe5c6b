"""Replay of a recorded history of the real allocator, and which lines of code and categories hold its memory.

The history is a memory snapshot's (`torch.cuda.memory._record_memory_history`, later `_snapshot`). Its requests and
frees are replayed, and segments and the reserved peak must equal the recorded ones. Its segment events are the answers
of the driver, and are compared:

- the replay begins with the first state (`first_state.py`), which is empty if recording began before any allocation;
- when the model asks for memory, the driver's recorded answer is the next segment event: an address, or a refusal if
  memory was released first;
- the model must release the same memory;
- every block must have the same address.

Therefore capacity, context and other programs on the card need not be known. Derived from the history itself are which
releases of segments are `empty_cache()` (`RecordedRun._is_emptied`), and sizes that the first state leaves open.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from profiler.allocator.histories.course import BEFORE, Course
from profiler.allocator.histories.first_state import ContradictionError, FirstState, first_state
from profiler.allocator.histories.history import Action, RecordedHistory, read_history
from profiler.allocator.histories.recorded_run import RecordedRun
from profiler.allocator.model.blocks import BlockState
from profiler.allocator.settings import AllocatorConfig, block_bytes
from profiler.allocator.snapshot_facts import CodeLine
from profiler.domain.errors import Fault, UsageError
from profiler.domain.memory import Category, Phase
from profiler.domain.runs.readings import CategoryShare

SegmentBlocks = tuple[int, tuple[tuple[int, bool], ...]]
"""A segment's address, and (bytes, in use) of its blocks."""


@dataclass(frozen=True, kw_only=True)
class RecordedComparison:
    """A recorded history and the model's replay of it."""

    entries: int
    """Number of entries of the history."""
    replayed_entries: int
    """Number of entries that the replay went through and that change memory, or try to."""
    first: FirstState
    """The state before entry `unverified_entries`, with which the replay begins."""
    unverified_entries: int
    """Number of first entries that are not replayed, because the history begins within their request."""
    is_consistent: bool
    """Whether the entries lead to the last state. If not, nothing is replayed."""
    departure: str
    """The first difference of the model, with its place, or the contradiction; empty if none."""
    recorded_peak_reserved_bytes: int
    peak_reserved_bytes: int
    recorded_segments: tuple[SegmentBlocks, ...]
    segments: tuple[SegmentBlocks, ...]
    """Segments of the model at the end."""
    emptied: frozenset[int]
    """Entries before which the program called `empty_cache()` and released memory."""
    refused_bytes: int | None
    """Smallest reserved memory that the driver refused, over all requests that then released memory; None: none."""
    course: Course
    """Course of the model, with the requests that were refused in the recording."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing was replayed, so that nothing was compared either."""
        return self.is_consistent and not self.replayed_entries

    @property
    def is_equal(self) -> bool:
        """Whether segments, their blocks and the reserved peak equal the recorded ones throughout."""
        return (
            not self.departure
            and self.recorded_peak_reserved_bytes == self.peak_reserved_bytes
            and self.recorded_segments == self.segments
        )


def replay_recorded(
    snapshot: Mapping[str, Any], *, config: AllocatorConfig | None = None, device: int | None = None
) -> RecordedComparison:
    """Replay the history of `device` in a snapshot and compare.

    Args:
        snapshot: `torch.cuda.memory._snapshot()`, or ours.
        config: The settings of that run; None: as the snapshot's `allocator_settings` give them.
        device: Which of the snapshot's devices; None: the one with the most entries.

    Raises:
        UsageError: It cannot be read, or it has private pools (CUDA graphs), which the model does not have.
    """
    return replay_history(read_history(snapshot, device=device, config=config))


def replay_history(history: RecordedHistory) -> RecordedComparison:
    """Replay a history and compare.

    A snapshot does not say which torch recorded it: blocks of one size are taken by address, as before torch 2.13, and
    if that departs by the age of their segments. The replay that goes further is returned.

    Raises:
        UsageError: It has private pools (CUDA graphs), which the model does not have.
    """
    if history.private_segments:
        found = f"{history.private_segments} of private pools (CUDA graphs, MemPool)"
        raise UsageError([Fault(key="segments", found=found, problem="only the default pool can be replayed")])
    index, by_address = _replay(history, by_age=False)
    if by_address.is_equal or not by_address.is_consistent:
        return by_address
    further, comparison = _replay(history, by_age=True)
    return comparison if comparison.is_equal or further > index else by_address


def _replay(history: RecordedHistory, *, by_age: bool) -> tuple[int, RecordedComparison]:
    """How many entries were replayed, and the comparison."""
    sizes_bytes: dict[int, int] = {}
    since = 0
    while True:
        try:
            first = first_state(history, since=since, sizes_bytes=sizes_bytes)
        except ContradictionError as contradiction:
            run = RecordedRun(history, _NOTHING, since=0, by_age=by_age)
            return 0, _compared(history, run, departure=str(contradiction), is_consistent=False)
        run = RecordedRun(history, first, since=since, by_age=by_age)
        departure = run.feed()
        wider = run.widened()
        if wider:
            sizes_bytes |= wider
        elif departure and since == 0 and run.begins_inside and run.is_first_request:
            since = run.index + 1
        else:
            return run.index, _compared(history, run, departure=departure)


_NOTHING = FirstState(segments=(), uncertain=frozenset())


def _compared(
    history: RecordedHistory, run: RecordedRun, *, departure: str, is_consistent: bool = True
) -> RecordedComparison:
    return RecordedComparison(
        entries=len(history.entries),
        first=run.first,
        unverified_entries=run.since,
        replayed_entries=sum(
            entry.action is not Action.OTHER for entry in history.entries[run.since : max(run.since, run.index)]
        ),
        is_consistent=is_consistent,
        departure=departure,
        recorded_peak_reserved_bytes=run.recorded_peak_bytes,
        peak_reserved_bytes=run.allocator.peak_reserved_bytes,
        recorded_segments=tuple(
            (
                segment.blocks[0].address,
                tuple((block.size_bytes, block.state is BlockState.IN_USE) for block in segment.blocks),
            )
            for segment in history.segments
        ),
        segments=tuple(
            (blocks[0].address, tuple((block.size_bytes, block.allocated) for block in blocks))
            for blocks in run.allocator.segments()
        ),
        emptied=frozenset(run.emptied),
        refused_bytes=run.refused_bytes,
        course=run.course.finished(),
    )


SHARE = 0.8
"""Share of the allocated memory that the named lines hold together."""


@dataclass(frozen=True, kw_only=True)
class LineHolding:
    """What the requests of one line hold."""

    line: CodeLine | None
    """None: requests without a stack, such as those from before the recording."""
    size_bytes: int
    """Sum of their blocks, each rounded as the allocator rounds."""
    blocks: int


@dataclass(frozen=True, kw_only=True)
class HeldLines:
    """Who holds the allocated memory at one instant of a recorded history."""

    entry: int
    """The entry after which it is counted; `BEFORE`: the beginning."""
    refused: LineHolding | None
    """The request that was refused at that entry; None: the instant is the peak of allocated memory."""
    allocated_bytes: int
    lines: tuple[LineHolding, ...]
    """Largest first. Their sum is `allocated_bytes` without the rests of blocks that were too small to be split off."""

    @property
    def has_stacks(self) -> bool:
        """Whether any block is known by its line."""
        return any(each.line is not None for each in self.lines)

    @property
    def largest(self) -> tuple[LineHolding, ...]:
        """The fewest lines that hold `SHARE` of the allocated memory together, or all."""
        found, held_bytes = [], 0
        for each in self.lines:
            if held_bytes >= SHARE * self.allocated_bytes:
                break
            found.append(each)
            held_bytes += each.size_bytes
        return tuple(found)


def held_lines(history: RecordedHistory, comparison: RecordedComparison) -> HeldLines:
    """Return the lines of code that hold the memory where a history ran out first, or else at its peak.

    Args:
        history: As recorded.
        comparison: Its replay, `is_consistent`. Of a replay that departs, only the part before is searched.
    """
    course = comparison.course
    refusal = course.refusals[0] if course.refusals else None
    if refusal is not None:
        entry, allocated_bytes = refusal.entry, refusal.allocated_bytes
        asked = history.entries[entry]
        refused = LineHolding(line=asked.line, size_bytes=refusal.requested_bytes, blocks=1)
    else:
        levels, refused = course.allocated_bytes, None
        allocated_bytes = max(levels)
        entry = next(place for place, level in enumerate(levels) if level == allocated_bytes) - 1
    live = _live(history, comparison, entry)
    return HeldLines(entry=entry, refused=refused, allocated_bytes=allocated_bytes, lines=_grouped(live.values()))


_Held = tuple[CodeLine | None, int]
"""The line and the bytes of a block in use."""


def _live(history: RecordedHistory, comparison: RecordedComparison, until: int) -> Mapping[int, _Held]:
    """Return the blocks in use after entry number `until`, by address."""
    since = comparison.unverified_entries
    live = dict(_first(history, comparison, since))
    for entry in history.entries[since : until + 1] if until != BEFORE else ():
        if entry.action is Action.ALLOC:
            live[entry.address] = entry.line, block_bytes(entry.size_bytes, history.config)
        elif entry.action is Action.FREE_COMPLETED:
            live.pop(entry.address, None)
    return live


def _first(history: RecordedHistory, comparison: RecordedComparison, since: int) -> Iterator[tuple[int, _Held]]:
    """Yield the blocks in use before entry `since`, whose line is known if they were never freed."""
    freed = {entry.address for entry in history.entries[since:] if entry.action is Action.FREE_COMPLETED}
    for segment in comparison.first.segments:
        for block in segment.blocks:
            if block.state is BlockState.IN_USE:
                line = None if block.address in freed else history.lines_at_end.get(block.address)
                yield block.address, (line, block.size_bytes)


def _grouped(blocks: Iterable[_Held]) -> tuple[LineHolding, ...]:
    sizes: Counter[CodeLine | None] = Counter()
    counts: Counter[CodeLine | None] = Counter()
    for line, size_bytes in blocks:
        sizes[line] += size_bytes
        counts[line] += 1
    found = (LineHolding(line=line, size_bytes=size, blocks=counts[line]) for line, size in sizes.items())
    return tuple(sorted(found, key=lambda each: (-each.size_bytes, each.line is None, str(each.line))))


# ---- the categories that are held at the peak of each phase ----------------------------------------------------------

_SITES = (
    ("torch/distributed/fsdp/", ("unshard", "all_gather"), Category.COMMUNICATION),
    ("torch/distributed/fsdp/", ("post_backward", "foreach_reduce"), Category.GRADIENTS),
    ("torch/distributed/fsdp/", ("_get_shard", "_init_sharded_param"), Category.WEIGHTS),
    ("torch/nn/parallel/distributed.py", ("_ddp_init_helper", "_pre_forward"), Category.COMMUNICATION),
    ("vllm/v1/worker/", ("initialize_kv_cache",), Category.KV_CACHE),
    ("vllm/v1/worker/gpu/", ("__init__",), Category.OTHER),  # what a sampler keeps, made when the model is loaded
    ("vllm/v1/worker/", ("load_model",), Category.WEIGHTS),
)
"""Categories of requests by the innermost function whose file has the first text in its path, and one of the others in
its name: of FSDP what it gathers, reduces and keeps, of DDP its buckets, of vLLM its weights and its KV cache.

Source: `torch/distributed/fsdp/_flat_param.py` and `_runtime_utils.py`, `_fully_shard` of FSDP 2; `GPUModelRunner`.
"""
_ENGINE_WITHIN = "vllm/v1/engine/core_client.py"  # below it vLLM runs in the process that asks it (`InprocClient`)
_PROCESS_BEGINS = "/multiprocessing/"  # above it is what the process did that forked this one
_OF_PHASES = {
    Phase.LOAD: Category.OTHER,
    Phase.SYNC: Category.COMMUNICATION,
    Phase.OPTIMIZER: Category.WORKSPACE,
    Phase.CHECKPOINT: Category.OTHER,
}
"""Categories of what nothing else names; in other phases it is an activation."""


@dataclass(frozen=True, kw_only=True)
class KnownBlocks:
    """What a program says of its own tensors when a part of its history ends."""

    categories: Mapping[tuple[int, int], Category] = field(default_factory=dict)
    """Of the storages of its parameters, their gradients and its optimizer's states, by address and bytes."""
    gradient_bytes: frozenset[int] = frozenset()
    """Sizes of whole gradients that autograd makes, which are shared or added up later."""
    row_bytes: frozenset[int] = frozenset()  # of logits
    workspace_bytes: int = 0  # of cuBLAS


@dataclass
class _Block:
    size_bytes: int
    category: Category
    is_settled: bool  # by the function that asked for it


class HeldCategories:
    """What torch's allocator holds of a card, by category, followed through a history from its first request.

    The history comes in parts, one per phase. At the end of each the program says which addresses its own tensors have,
    and a block that is named keeps this category until it is freed; what was gathered or is an engine's is not named:
    parameters refer to both. Any other block has the category of the function that asked, of its size, or of its phase.
    """

    def __init__(self, config: AllocatorConfig) -> None:
        self._config = config
        self._live: dict[int, _Block] = {}

    def read(self, entries: Sequence[Mapping[str, Any]], phase: Phase, known: KnownBlocks) -> tuple[CategoryShare, ...]:
        """Return what was held when these entries, or the state before them, had the most: the sum is the peak.

        Args:
            entries: Of one device, as `torch.cuda.memory._snapshot()` gives them, with Python's stacks of requests.
            phase: Of all of them.
            known: At their end.
        """
        until = self._place_of_most(entries)
        self._apply(entries[:until], phase, known)
        held = list(self._live.values())
        self._apply(entries[until:], phase, known)
        for (address, size), category in known.categories.items():
            block = self._live.get(address)
            if block is not None and not block.is_settled and block.size_bytes == block_bytes(size, self._config):
                block.category = category
        sizes: Counter[Category] = Counter()
        for block in held:
            sizes[block.category] += block.size_bytes
        return tuple(CategoryShare(category=each, size_bytes=sizes[each]) for each in Category if sizes[each])

    def _place_of_most(self, entries: Sequence[Mapping[str, Any]]) -> int:
        """Return after how many entries the most is held."""
        sizes = {address: block.size_bytes for address, block in self._live.items()}
        total = most = sum(sizes.values())
        found = 0
        for place, entry in enumerate(entries, start=1):
            if entry["action"] == _ALLOC:
                sizes[entry["addr"]] = block_bytes(entry["size"], self._config)
                total += sizes[entry["addr"]]
            elif entry["action"] == _FREE:
                total -= sizes.pop(entry["addr"], 0)
            if total > most:
                most, found = total, place
        return found

    def _apply(self, entries: Sequence[Mapping[str, Any]], phase: Phase, known: KnownBlocks) -> None:
        for entry in entries:
            if entry["action"] == _ALLOC:
                site = _category_of_site(entry.get("frames", ()))
                self._live[entry["addr"]] = _Block(
                    size_bytes=block_bytes(entry["size"], self._config),
                    category=site or _category(entry, phase, known),
                    is_settled=site in (Category.COMMUNICATION, Category.ENGINE),
                )
            elif entry["action"] == _FREE:
                self._live.pop(entry["addr"], None)


_ALLOC, _FREE = "alloc", "free_requested"
"""Actions that change torch's counter of allocated memory."""


def _category_of_site(frames: Iterable[Mapping[str, Any]]) -> Category | None:
    found = None
    for path, name in ((frame["filename"], frame["name"]) for frame in frames):
        if _ENGINE_WITHIN in path or _PROCESS_BEGINS in path:
            return Category.ENGINE if _ENGINE_WITHIN in path else found
        sites = (site for part, names, site in _SITES if part in path and any(each in name for each in names))
        found = found or next(sites, None)
    return found


def _category(entry: Mapping[str, Any], phase: Phase, known: KnownBlocks) -> Category:
    size = entry["size"]
    if size == known.workspace_bytes:
        return Category.WORKSPACE
    if phase is Phase.BACKWARD and not entry.get("frames") and size in known.gradient_bytes:
        return Category.GRADIENTS
    if phase in _OF_PHASES:
        return _OF_PHASES[phase]
    return Category.LOGITS if any(size % row == 0 for row in known.row_bytes) else Category.ACTIVATIONS
