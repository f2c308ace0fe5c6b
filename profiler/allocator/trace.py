"""The stream of allocations and frees of one trial, in order, with what each block is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from profiler.domain.gpu import Chip
from profiler.domain.memory import Category, Phase


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where a block comes from: the operation that made it, and for what."""

    operation: str
    """ATen's name, such as ``aten.mm``; of a kernel's scratch, the kernel's."""
    shape: tuple[int, ...]
    dtype: str
    """torch's name without ``torch.``; empty for raw bytes."""
    module: str
    """Path of the module in whose forward, or in the backward of whose forward, it was made; empty outside of one."""


NO_SITE = Site(operation="", shape=(), dtype="", module="")
"""A block of which nothing more is known."""


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
    """Distinct sites; `site_of` gives each block's index in it. Both empty where sites were not recorded."""
    site_of: Sequence[int] = ()
    names: Mapping[int, str] = field(default_factory=dict)
    """What a block is, where that is known: ``"gradient of lm_head.weight"``."""
    sizes_by_capability: Mapping[int, Mapping[Chip, int]] = field(default_factory=dict)
    """Requested bytes of blocks that have another size on some cards."""
    cache_emptied: Sequence[int] = ()
    """Indices of events before which the program emptied the allocator's cache, ascending."""

    def on(self, chip: Chip) -> "Trace":
        """The same trace with the sizes that blocks have on a card with `chip`."""
        changed = {block: by[chip] for block, by in self.sizes_by_capability.items() if chip in by}
        if not changed:
            return self
        sizes = list(self.sizes_bytes)
        for block, size in changed.items():
            sizes[block] = size
        return replace(self, sizes_bytes=tuple(sizes), sizes_by_capability={})


@dataclass
class TraceBuilder:
    """Collects a trace while a trial runs."""

    sizes_bytes: list[int] = field(default_factory=list)
    categories: list[Category] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    phase_starts: list[tuple[int, Phase]] = field(default_factory=list)
    site_of: list[int] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    sizes_by_capability: dict[int, Mapping[Chip, int]] = field(default_factory=dict)
    cache_emptied: list[int] = field(default_factory=list)
    kept: dict[str, int] = field(default_factory=dict)
    """Blocks that are never given back, by name."""
    _sites: dict[Site, int] = field(default_factory=dict)

    @property
    def phase(self) -> Phase:
        """The phase that the trial is in."""
        return self.phase_starts[-1][1] if self.phase_starts else Phase.LOAD

    def enter(self, phase: Phase) -> None:
        """`phase` begins."""
        if not self.phase_starts or self.phase_starts[-1][1] is not phase:
            self.phase_starts.append((len(self.events), phase))

    def allocate(self, size_bytes: int, category: Category, site: int | None = None) -> int:
        """A block of `size_bytes` is allocated now, at the site of this number (`site_index`); the block's number."""
        block = len(self.sizes_bytes)
        self.sizes_bytes.append(size_bytes)
        self.categories.append(category)
        self.site_of.append(self.site_index(NO_SITE) if site is None else site)
        self.events.append(block + 1)
        return block

    def keep(
        self, name: str, size_bytes: int, category: Category, by_capability: Mapping[Chip, int] | None = None
    ) -> None:
        """A block of this name is allocated now and never given back, unless there is one already."""
        if name in self.kept:
            return
        self.kept[name] = block = self.allocate(size_bytes, category)
        self.names[block] = name
        if by_capability:
            self.sizes_by_capability[block] = by_capability

    def site_index(self, site: Site) -> int:
        """The number by which blocks refer to `site`."""
        return self._sites.setdefault(site, len(self._sites))

    def sites(self) -> Sequence[Site]:
        """Distinct sites so far, by their number."""
        return tuple(self._sites)

    def forget_from(self, *, event: int, block: int) -> None:
        """Cut off what came since there were `event` events and `block` blocks; frees of older blocks stay."""
        still_true = [freed for freed in self.events[event:] if -block <= freed < 0]
        for kept, length in ((self.events, event), (self.sizes_bytes, block), (self.site_of, block)):
            del kept[length:]
        del self.categories[block:]
        self.events.extend(still_true)
        self.names = {number: name for number, name in self.names.items() if number < block}
        self.cache_emptied = [index for index in self.cache_emptied if index <= event]
        self.sizes_by_capability = {
            number: sizes for number, sizes in self.sizes_by_capability.items() if number < block
        }
        self.kept = {name: number for name, number in self.kept.items() if number < block}

    def empty_cache(self) -> None:
        """The program empties the allocator's cache now (`torch.cuda.empty_cache`)."""
        self.cache_emptied.append(len(self.events))

    def free(self, block: int) -> None:
        """A block is freed now."""
        self.events.append(-(block + 1))

    def attribute(self, block: int, category: Category) -> None:
        """A block turns out to be of `category`, and always was."""
        self.categories[block] = category

    def finished(self) -> Trace:
        """The trace so far."""
        return Trace(
            sizes_bytes=tuple(self.sizes_bytes),
            categories=tuple(self.categories),
            events=tuple(self.events),
            phase_starts=tuple(self.phase_starts),
            sites=tuple(self._sites),
            site_of=tuple(self.site_of),
            names=dict(self.names),
            sizes_by_capability=dict(self.sizes_by_capability),
            cache_emptied=tuple(self.cache_emptied),
        )
