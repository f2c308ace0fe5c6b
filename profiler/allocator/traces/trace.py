"""The allocations and frees of one trial in their order."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from operator import attrgetter, eq
from typing import TYPE_CHECKING, Any, overload

from profiler.domain.cards.gpu import Chip
from profiler.domain.memory import Category, Phase

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

NO_LAYER = -1
"""Instead of a layer: nothing is known about it."""

OUTSIDE_LAYERS = -2
"""Instead of a layer: known to belong to none."""

SCALE_OF_GRADIENTS = "scale of gradients"
"""In place of an operation: the numbers by which fp16 scales all gradients together, of all layers."""

LAYER = re.compile(r"(?<=\blayers\.)\d+(?=\.|$)")
"""The number of a layer in a path of modules or in the name of a tensor."""


def layer_in(path: str) -> int:
    """Return the number of the layer in a path or name, of which an empty one says nothing."""
    found = LAYER.search(path)
    if found is None:
        return OUTSIDE_LAYERS if path else NO_LAYER
    return int(found.group())


@dataclass(frozen=True, kw_only=True)
class Site:
    """Origin of a block: the operation that created it, and its purpose."""

    operation: str
    """ATen's name, such as ``aten.mm``; for scratch memory, the name of the kernel."""
    shape: tuple[int, ...]
    dtype: str
    """torch's name without ``torch.``; empty for raw bytes."""
    module: str
    """Path of the module whose forward or backward created it; empty outside modules."""
    operand_layer: int = NO_LAYER
    """Outside modules, the layer of the operand that it was made of."""
    call: Hashable = None
    """Of an empty block that stands for the scratch of a kernel, the kernel and its arguments."""

    @property
    def layer(self) -> int:
        """The layer that the block belongs to."""
        return layer_in(self.module) if self.module else self.operand_layer


_PlainSite = tuple[Any, ...]
"""A site as its values: while a trial runs, the garbage collector, which visits every object, visits none of them."""

_plain: Callable[[Site], _PlainSite] = attrgetter(*(each.name for each in fields(Site)))


def _site(plain: _PlainSite) -> Site:
    operation, shape, dtype, module, operand_layer, call = plain
    # A long rollout has a hundred thousand: from a mapping they take twice the time.
    return Site(operation=operation, shape=shape, dtype=dtype, module=module, operand_layer=operand_layer, call=call)


NO_SITE = Site(operation="", shape=(), dtype="", module="")
"""Site of a block of unknown origin."""


class Integers(Sequence[int]):
    """Integers in one array of numpy: of millions a tenth of the memory of a tuple, and no time to make one."""

    def __init__(self, array: "npt.NDArray[Any]") -> None:
        self._known = array

    @property
    def _array(self) -> "npt.NDArray[Any]":
        return self._known

    def __array__(self, dtype: "npt.DTypeLike | None" = None, copy: bool | None = None) -> "npt.NDArray[Any]":
        return self._array.astype(self._array.dtype if dtype is None else dtype, copy=bool(copy))

    def __len__(self) -> int:
        return len(self._array)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> "Integers": ...

    def __getitem__(self, index: int | slice) -> "int | Integers":
        return Integers(self._array[index]) if isinstance(index, slice) else int(self._array[index])

    def __iter__(self) -> Iterator[int]:
        starts = range(0, len(self), _AT_ONCE)
        return chain.from_iterable(self._array[start : start + _AT_ONCE].tolist() for start in starts)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Integers):
            return self._array.shape == other._array.shape and bool((self._array == other._array).all())
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]  # as a list


class LazySites(Sequence[Site], ABC):
    """Sites, each made when it is asked for: few of a hundred thousand are."""

    @abstractmethod
    def _made(self, number: int) -> Site:
        """Return the site of a number, which exists."""

    @overload
    def __getitem__(self, index: int) -> Site: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Site]: ...

    def __getitem__(self, index: int | slice) -> Site | Sequence[Site]:
        numbers = range(len(self))[index]
        return self._made(numbers) if isinstance(numbers, int) else [self._made(number) for number in numbers]


class Categories(Sequence[Category]):
    """Categories of blocks by their places among all: of millions of blocks one array of bytes."""

    def __init__(self, places: "Integers | npt.NDArray[np.uint8]") -> None:
        self._places = places

    @property
    def places(self) -> "npt.NDArray[np.uint8]":
        """The array."""
        return self._places.__array__()

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Category: ...

    @overload
    def __getitem__(self, index: slice) -> "Categories": ...

    def __getitem__(self, index: int | slice) -> "Category | Categories":
        return Categories(self.places[index]) if isinstance(index, slice) else _CATEGORIES[self._places[index]]

    def __iter__(self) -> Iterator[Category]:
        return map(_CATEGORIES.__getitem__, Integers(self.places))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]  # as a list


_CATEGORIES = tuple(Category)


def places_of(categories: Sequence[Category]) -> "npt.NDArray[np.uint8]":
    """Return the place of each category among all of them, in the order of `Category`."""
    if isinstance(categories, Categories):
        return categories.places
    import numpy as np  # not needed to write or read a trace

    places = {category: place for place, category in enumerate(_CATEGORIES)}
    return np.fromiter(map(places.__getitem__, categories), dtype=np.uint8, count=len(categories))


_AT_ONCE = 1 << 16
"""Numbers that are objects of Python at a time."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One trial's allocations. Blocks are numbered in the order of their allocation, from 0.

    `events` holds ``block + 1`` where a block is allocated and ``-(block + 1)`` where it is freed. `phase_starts` holds
    pairs (index of the first event, phase), ascending; an event belongs to the last phase that began at or before it.
    """

    sizes_bytes: Sequence[int]
    """Requested bytes of each block, before rounding."""
    categories: Sequence[Category]
    events: Sequence[int]
    phase_starts: Sequence[tuple[int, Phase]]
    sites: Sequence[Site] = ()
    """`site_of` has the index of each block's site; few are equal. Both empty if sites were not recorded."""
    site_of: Sequence[int] = ()
    names: Mapping[int, str] = field(default_factory=dict)
    """Known names by block, such as ``"gradient of lm_head.weight"``."""
    sizes_by_capability: Mapping[int, Mapping[Chip, int]] = field(default_factory=dict)
    """Requested bytes of blocks whose size depends on the card."""
    cache_emptied: Sequence[int] = ()
    """Indices of events before which the program emptied the allocator's cache, ascending."""
    streams: Mapping[int, int] = field(default_factory=dict)
    """Streams of blocks that are not on the default one, 0."""

    def on(self, chip: Chip) -> "Trace":
        """Return the trace with the block sizes on a card with `chip`."""
        changed = {block: by[chip] for block, by in self.sizes_by_capability.items() if chip in by}
        if not changed:
            return self
        sizes = list(self.sizes_bytes)
        for block, size in changed.items():
            sizes[block] = size
        return replace(self, sizes_bytes=tuple(sizes), sizes_by_capability={})


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Some events of a run, in their order."""

    events: Sequence[int]
    """As `Trace.events`, with the numbers that the blocks have in the run."""
    first_block: int
    sizes_bytes: Sequence[int]
    """Of each block that the piece allocates, from `first_block` on."""
    phases: Sequence[tuple[int, Phase]]
    """Where phases begin, as indices of `events`; the first entry is the phase in which the piece begins."""
    cache_emptied: Sequence[int] = ()
    """Indices of events before which the program empties the cache, ascending; their count: after the last one."""
    streams: Mapping[int, int] = field(default_factory=dict)
    """Streams of blocks that are not on the default one, by number counted from `first_block`."""


def piece_of(trace: Trace, first: int, end: int, *, first_block: int) -> Piece:
    """Return the events of a trace from `first` to before `end`; blocks before `first_block` were made earlier."""
    begun = [phase for at, phase in trace.phase_starts if at <= first]
    within = [(at - first, phase) for at, phase in trace.phase_starts if first < at < end]
    events = trace.events[first:end]
    after = first_block + sum(event > 0 for event in events)
    return Piece(
        events=events,
        first_block=first_block,
        sizes_bytes=trace.sizes_bytes[first_block:after],
        phases=[(0, begun[-1] if begun else Phase.LOAD), *within],
        cache_emptied=[at - first for at in trace.cache_emptied if first <= at < end],
        streams={block - first_block: by for block, by in trace.streams.items() if first_block <= block < after},
    )


@dataclass(frozen=True, kw_only=True)
class ClosedRuns:
    """Ranges of a trace's events that free each block that they allocate and no other one, ascending.

    They have blocks of the default stream only, and neither begin a phase nor empty the cache on the way.
    """

    firsts: Sequence[int] = ()
    ends: Sequence[int] = ()
    alike: Sequence[int] = ()
    """The same number for ranges with the same requests and frees."""


NOTHING_CLOSED = ClosedRuns()


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Cycles of events that a trace does not have, between others of the same pattern."""

    starts: tuple[int, int, int]
    """First events of the last two cycles before them, and the event before which they belong."""
    cycles: int
    """Each continues what the two before it change."""
    memory: int
    """How many cycles back the oldest block lies that a cycle frees."""

    def later(self, events: int) -> "LeftOut":
        """Return the same cycles, `events` events later."""
        before, last, end = self.starts
        return replace(self, starts=(before + events, last + events, end + events))


@dataclass
class TraceBuilder:
    """Builder of a trace while a trial runs."""

    sizes_bytes: list[int] = field(default_factory=list)
    categories: list[Category] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    phase_starts: list[tuple[int, Phase]] = field(default_factory=list)
    site_of: list[int] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    sizes_by_capability: dict[int, Mapping[Chip, int]] = field(default_factory=dict)
    cache_emptied: list[int] = field(default_factory=list)
    streams: dict[int, int] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)
    """Blocks that are never freed, by name."""
    left_out: list[LeftOut] = field(default_factory=list)
    """What has to be written out before the trace is one, ascending; empty unless a run asks for it."""
    _sites: dict[_PlainSite, int] = field(default_factory=dict)
    _by_number: list[_PlainSite] = field(default_factory=list)
    _layers: list[int] = field(default_factory=list)
    """The layer of each site."""

    @property
    def phase(self) -> Phase:
        """The current phase."""
        return self.phase_starts[-1][1] if self.phase_starts else Phase.LOAD

    def enter(self, phase: Phase) -> None:
        """Begin `phase`. An evaluation that begins again marks its batches."""
        if phase is Phase.EVALUATION or not self.phase_starts or self.phase_starts[-1][1] is not phase:
            self.phase_starts.append((len(self.events), phase))

    def allocate(self, size_bytes: int, category: Category, site: int | None = None) -> int:
        """Allocate a block of `size_bytes` at the site of this number (`site_index`); return the block's number."""
        block = len(self.sizes_bytes)
        self.sizes_bytes.append(size_bytes)
        self.categories.append(category)
        self.site_of.append(self.site_index(NO_SITE) if site is None else site)
        self.events.append(block + 1)
        return block

    def keep(
        self, name: str, size_bytes: int, category: Category, by_capability: Mapping[Chip, int] | None = None
    ) -> None:
        """Allocate a block of this name that is never freed, unless it exists."""
        if name in self.kept:
            return
        self.kept[name] = block = self.allocate(size_bytes, category)
        self.names[block] = name
        if by_capability:
            self.sizes_by_capability[block] = by_capability

    def site_index(self, site: Site) -> int:
        """Return the number of `site`."""
        plain = _plain(site)
        index = self._sites.setdefault(plain, len(self._sites))
        if index == len(self._layers):
            self._layers.append(site.layer)
            self._by_number.append(plain)
        return index

    def made_in_layer(self, block: int, layer: int) -> None:
        """Set the layer of a block, if it was made outside modules."""
        site = _site(self._by_number[self.site_of[block]])
        self.site_of[block] = self.site_index(replace(site, operand_layer=layer))

    def layer_of(self, block: int) -> int:
        """Return the layer of a block, by its name or else by its site."""
        named = layer_in(self.names.get(block, ""))
        return self._layers[self.site_of[block]] if named == NO_LAYER else named

    def sites(self) -> Sequence[Site]:
        """Return the distinct sites so far, by number."""
        return tuple(map(_site, self._by_number))

    def forget_from(self, *, event: int, block: int) -> None:
        """Remove everything after the first `event` events and `block` blocks; frees of older blocks stay."""
        still_true = [freed for freed in self.events[event:] if -block <= freed < 0]
        for kept, length in ((self.events, event), (self.sizes_bytes, block), (self.site_of, block)):
            del kept[length:]
        del self.categories[block:]
        self.events.extend(still_true)
        self.names = {number: name for number, name in self.names.items() if number < block}
        self.cache_emptied = [index for index in self.cache_emptied if index <= event]
        self.left_out = [cycles for cycles in self.left_out if cycles.starts[-1] <= event]
        self.sizes_by_capability = {
            number: sizes for number, sizes in self.sizes_by_capability.items() if number < block
        }
        self.streams = {number: stream for number, stream in self.streams.items() if number < block}
        self.kept = {name: number for name, number in self.kept.items() if number < block}

    def empty_cache(self) -> None:
        """Record `torch.cuda.empty_cache`."""
        self.cache_emptied.append(len(self.events))

    def free(self, block: int) -> None:
        """Free a block."""
        self.events.append(-(block + 1))

    def attribute(self, block: int, category: Category) -> None:
        """Set the category of a block, for its whole lifetime."""
        self.categories[block] = category

    def finished(self) -> Trace:
        """Return the trace so far."""
        return Trace(
            sizes_bytes=tuple(self.sizes_bytes),
            categories=tuple(self.categories),
            events=tuple(self.events),
            phase_starts=tuple(self.phase_starts),
            sites=self.sites(),
            site_of=tuple(self.site_of),
            names=dict(self.names),
            sizes_by_capability=dict(self.sizes_by_capability),
            cache_emptied=tuple(self.cache_emptied),
            streams=dict(self.streams),
        )
