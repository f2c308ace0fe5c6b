"""Parse the memory history of a snapshot: untyped mapping -> typed entries and segments, or a fault.

Format: `torch.cuda.memory._snapshot()` of torch 2.0 and later, read as `torch.cuda._memory_viz` reads it. Keys that a
version of torch does not write yet are derived from what is there.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any, TypeGuard

from profiler.allocator.model.blocks import BlockState, HeldBlock, HeldSegment
from profiler.allocator.settings import SMALL_SEGMENT_BYTES, AllocatorConfig
from profiler.allocator.snapshot_facts import SETTINGS, CodeLine, CodeLines, recorded_config
from profiler.domain.errors import Fault, UsageError
from profiler.domain.memory import GIB

TRACES, SEGMENTS = "device_traces", "segments"
_RECORD_FIRST = "Record with torch.cuda.memory._record_memory_history() before torch.cuda.memory._dump_snapshot(PATH)."
_DEFAULT_POOL = (0, 0)
_MOST_BYTES = 1024 * GIB
"""Upper bound on the size of one block or segment: more than any card has."""


class Action(StrEnum):
    """Kind of an entry, by torch's names."""

    ALLOC = "alloc"
    FREE_REQUESTED = "free_requested"
    FREE_COMPLETED = "free_completed"
    SEGMENT_ALLOC = "segment_alloc"
    SEGMENT_FREE = "segment_free"
    SEGMENT_MAP = "segment_map"
    SEGMENT_UNMAP = "segment_unmap"
    OOM = "oom"
    OTHER = "other"
    """Any other entry, such as `snapshot`; it changes no memory."""


GAINS = frozenset({Action.SEGMENT_ALLOC, Action.SEGMENT_MAP})
LOSSES = frozenset({Action.SEGMENT_FREE, Action.SEGMENT_UNMAP})
_ACTIONS = {action.value: action for action in Action}


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One recorded event."""

    action: Action
    address: int
    """Address of the block or segment; 0 for an `oom`."""
    size_bytes: int
    """Requested size of a block, or size of a segment."""
    stream: int
    device_free_bytes: int | None = None
    """Free memory of the driver at an `oom`."""
    line: CodeLine | None = None
    """The line of code that requested it; of `alloc` and `oom`, where the snapshot has stacks."""

    def __str__(self) -> str:
        place = "" if self.action in (Action.OOM, Action.OTHER) else f" at {self.address:#x}"
        return f"{self.action} of {self.size_bytes}{place}"


@dataclass(frozen=True, kw_only=True)
class RecordedDevice:
    """What a snapshot has of one device, in numbers."""

    device: int
    entries: int
    segments: int
    """At the end."""
    first_oom: int | None
    """The entry at which it first ran out of memory; None if it did not."""


@dataclass(frozen=True, kw_only=True)
class RecordedHistory:
    """Content of a snapshot about one device."""

    device: int
    entries: Sequence[Entry]
    segments: tuple[HeldSegment, ...]
    """Segments at the end, by address."""
    config: AllocatorConfig
    """The settings of the run."""
    private_segments: int
    """Number of segments of CUDA graphs and other private pools at the end; not in other fields."""
    lines_at_end: Mapping[int, CodeLine] = field(default_factory=dict)
    """Lines that requested the blocks that are in use at the end, by address, where the snapshot has stacks."""
    others: tuple[RecordedDevice, ...] = ()
    """The other devices of the snapshot that have entries or segments."""

    @property
    def changes(self) -> int:
        """Number of entries that change memory, or try to."""
        return sum(entry.action is not Action.OTHER for entry in self.entries)

    @property
    def streams(self) -> tuple[int, ...]:
        """Streams of the history, ascending."""
        return tuple(sorted({entry.stream for entry in self.entries} | {segment.stream for segment in self.segments}))


def read_history(
    snapshot: object, *, device: int | None = None, config: AllocatorConfig | None = None
) -> RecordedHistory:
    """Read the history of one device from a snapshot.

    Args:
        snapshot: `torch.cuda.memory._snapshot()`, or ours.
        device: Its number; None: the device that ran out of memory first, else that with the most entries.
        config: The settings of the run; None: as the snapshot gives them.

    Raises:
        UsageError: It is not a memory snapshot, has no such device, or its settings cannot be read.
    """
    if not isinstance(snapshot, Mapping) or not _is_list(snapshot.get(TRACES)) or not _is_list(snapshot.get(SEGMENTS)):
        raise _fault("snapshot", _kind(snapshot), f"must be a mapping with '{SEGMENTS}' and '{TRACES}'", _RECORD_FIRST)
    traces = snapshot[TRACES]
    known = _devices(traces, snapshot[SEGMENTS])
    number = _device(traces, known, device)
    trace = traces[number] if number < len(traces) else []
    if not _is_list(trace):
        raise _fault(f"{TRACES}[{number}]", _kind(trace), "must be a list of entries")
    lines = CodeLines()
    entries = [_entry(raw, number, index, lines) for index, raw in enumerate(trace)]
    raw_segments = _segments_of(snapshot[SEGMENTS], number)
    default = [raw for raw in raw_segments if tuple(raw.get("segment_pool_id", _DEFAULT_POOL)) == _DEFAULT_POOL]
    has_expandable = _has_expandable(entries, default)
    if config is None:
        settings = snapshot.get(SETTINGS) or {}
        if not isinstance(settings, Mapping):
            raise _fault(SETTINGS, _kind(settings), "must be a mapping")
        config = recorded_config(settings, has_expandable=has_expandable)
    found = [_segment(raw, config, is_expandable=bool(has_expandable)) for raw in default]
    found.sort(key=lambda segment: segment.blocks[0].address)
    for left, right in pairwise(found):
        last = left.blocks[-1]
        if last.address + last.size_bytes > right.blocks[0].address:
            raise _fault(SEGMENTS, f"two that overlap at {right.blocks[0].address:#x}", "must lie apart")
    return RecordedHistory(
        device=number,
        entries=entries,
        segments=tuple(found),
        config=config,
        private_segments=len(raw_segments) - len(default),
        lines_at_end=dict(_lines_at_end(default, lines)),
        others=tuple(each for each in known if each.device != number and (each.entries or each.segments)),
    )


def _devices(traces: Sequence[Any], segments: Sequence[Any]) -> tuple[RecordedDevice, ...]:
    """Return what a snapshot has of each device, by number; device 0 also if it has nothing."""
    held: Counter[int] = Counter(
        raw.get("device", 0) for raw in segments if isinstance(raw, Mapping) and _is_int(raw.get("device", 0))
    )
    lists = {number: trace if _is_list(trace) else () for number, trace in enumerate(traces)}
    return tuple(
        RecordedDevice(
            device=number,
            entries=len(lists.get(number, ())),
            segments=held[number],
            first_oom=next((index for index, raw in enumerate(lists.get(number, ())) if _is_oom(raw)), None),
        )
        for number in sorted({0, *lists, *held})
    )


def _is_oom(raw: object) -> bool:
    return isinstance(raw, Mapping) and raw.get("action") == Action.OOM.value


def _device(traces: Sequence[Any], known: Sequence[RecordedDevice], device: int | None) -> int:
    """Return the requested device, or the one that ran out of memory first, or that with most entries, then segments.

    A snapshot without times, as of torch before 2.2, does not say which of several ran out first.
    """
    if device is None:
        ran_out = [each for each in known if each.first_oom is not None]
        return max(
            ran_out or known,
            key=lambda each: (-_oom_time(traces, each), each.entries, each.segments, -each.device),
        ).device
    if any(each.device == device for each in known):
        return device
    numbers = ", ".join(str(each.device) for each in known[:20])
    raise _fault("device", str(device), f"the snapshot has {numbers}")


def _oom_time(traces: Sequence[Any], device: RecordedDevice) -> int:
    """Return when a device first ran out of memory, in microseconds; 0 if that is not known."""
    time = 0 if device.first_oom is None else traces[device.device][device.first_oom].get("time_us", 0)
    return time if _is_int(time) else 0


def _entry(raw: object, device: int, index: int, lines: CodeLines) -> Entry:
    name = raw.get("action") if isinstance(raw, Mapping) else None
    if not isinstance(raw, Mapping) or not isinstance(name, str):
        raise _entry_fault(raw, device, index)
    action = _ACTIONS.get(name, Action.OTHER)
    if action is Action.OTHER:
        return Entry(action=action, address=0, size_bytes=0, stream=0)
    size, stream = raw.get("size"), raw.get("stream", 0)
    address = 0 if action is Action.OOM else raw.get("addr")
    if not (_is_int(size) and 1 <= size <= _MOST_BYTES and _is_int(address) and _is_int(stream)):
        raise _entry_fault(raw, device, index)
    free = raw.get("device_free") if action is Action.OOM else None
    return Entry(
        action=action,
        address=address,
        size_bytes=size,
        stream=stream,
        device_free_bytes=free if _is_int(free) else None,
        line=lines.of(raw) if action in (Action.ALLOC, Action.OOM) else None,
    )


def _entry_fault(raw: object, device: int, index: int) -> UsageError:
    """Return the fault of an entry that cannot be read."""
    place = f"{TRACES}[{device}][{index}]"
    if not isinstance(raw, Mapping):
        return _fault(place, _kind(raw), "must be a mapping")
    if not isinstance(raw.get("action"), str):
        return _fault(f"{place}.action", _kind(raw.get("action")), "must be a text")
    size = raw.get("size")
    if not _is_int(size) or not 1 <= size <= _MOST_BYTES:
        return _fault(f"{place}.size", _kind(size), f"must be a whole number from 1 to {_MOST_BYTES}")
    found = f"addr {_kind(raw.get('addr'))}, stream {_kind(raw.get('stream', 0))}"
    return _fault(place, found, "both must be whole numbers")


def _segments_of(raw_segments: Sequence[Any], device: int) -> list[Mapping[str, Any]]:
    for index, raw in enumerate(raw_segments):
        if not isinstance(raw, Mapping) or not _is_int(raw.get("address")) or not _is_list(raw.get("blocks")):
            raise _fault(f"{SEGMENTS}[{index}]", _kind(raw), "must be a mapping with 'address' and 'blocks'")
        if not _is_list(raw.get("segment_pool_id", _DEFAULT_POOL)):
            raise _fault(f"{SEGMENTS}[{index}].segment_pool_id", _kind(raw["segment_pool_id"]), "must be a pair")
    return [raw for raw in raw_segments if raw.get("device", 0) == device and raw["blocks"]]


def _lines_at_end(raw_segments: Iterable[Mapping[str, Any]], lines: CodeLines) -> Iterator[tuple[int, CodeLine]]:
    """Yield address and line of the blocks that have one."""
    for raw in raw_segments:
        address = raw["address"]
        for block in raw["blocks"]:
            line = lines.of(block)
            if line is not None:
                yield address, line
            address += block["size"]


def _has_expandable(entries: Iterable[Entry], segments: Iterable[Mapping[str, Any]]) -> bool | None:
    """Return whether all segments are expandable; None if there are none, or both kinds."""
    kinds = {bool(raw["is_expandable"]) for raw in segments if "is_expandable" in raw}
    kinds |= {entry.action is Action.SEGMENT_MAP for entry in entries if entry.action in GAINS}
    return kinds.pop() if len(kinds) == 1 else None


def _segment(raw: Mapping[str, Any], config: AllocatorConfig, *, is_expandable: bool) -> HeldSegment:
    place = f"segment at {raw['address']:#x}"
    stream = raw.get("stream", 0)
    if not _is_int(stream):
        raise _fault(f"{place}, stream", _kind(stream), "must be a whole number")
    blocks = _blocks(raw, place)
    is_small = sum(block.size_bytes for block in blocks) == SMALL_SEGMENT_BYTES
    if "segment_type" in raw:
        is_small = raw["segment_type"] == "small"
    page_bytes = SMALL_SEGMENT_BYTES if is_small else config.large_segment_bytes
    return HeldSegment(
        stream=stream,
        is_small=is_small,
        page_bytes=page_bytes if raw.get("is_expandable", is_expandable) else None,
        blocks=blocks,
    )


def _blocks(raw: Mapping[str, Any], place: str) -> tuple[HeldBlock, ...]:
    address, blocks = raw["address"], []
    for number, block in enumerate(raw["blocks"]):
        size = block.get("size") if isinstance(block, Mapping) else None
        if not _is_int(size) or not 1 <= size <= _MOST_BYTES:
            raise _fault(
                f"{place}, block {number}", _kind(block), f"must be a mapping, its size from 1 to {_MOST_BYTES}"
            )
        if block.get("address", address) != address:
            raise _fault(f"{place}, block {number}", "an address of its own", "must begin where the one before ends")
        state = block.get("state")
        in_use = isinstance(state, str) and state.startswith("active")
        requested = block.get("requested_size", size)
        blocks.append(
            HeldBlock(
                address=address,
                size_bytes=size,
                requested_bytes=(requested if _is_int(requested) and 0 < requested <= size else size) if in_use else 0,
                state=BlockState.IN_USE if in_use else BlockState.FREE,
            )
        )
        address += size
    return tuple(blocks)


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, list | tuple)


def _is_int(value: object) -> TypeGuard[int]:
    """Return whether a value is a 64-bit integer, as torch writes them."""
    return isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 64


def _kind(value: object) -> str:
    """Format a value for a message: numbers and short texts as they are, otherwise only the type."""
    if isinstance(value, float) or _is_int(value) or value is None:
        return str(value)
    return repr(value)[:40] if isinstance(value, str) else f"value of type {type(value).__name__}"


def _fault(key: str, found: str, problem: str, hint: str = "") -> UsageError:
    return UsageError([Fault(key=key, found=found, problem=problem, hint=hint)])
