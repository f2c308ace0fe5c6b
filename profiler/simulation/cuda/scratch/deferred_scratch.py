"""Scratch of kernels that is left open while a run is recorded, and computed for other lengths later.

How much a reduction takes is a staircase over the lengths of rows. A run to learn from records two empty blocks where a
kernel begins and ends, with the operation and its arguments; the rule of the kernel answers for any lengths.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from profiler.domain.cards.gpu import Chip
from profiler.simulation.cuda.scratch.kernel_scratch import KernelScratch, Scratch

Sizes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Sizes in bytes of the blocks of a kernel; then the events before its result and after it, as `Trace.events` with the
blocks counted from 0."""

Rule = Scratch | Callable[[Any, Any, Chip], Sizes]
"""Says what a kernel allocates; or a part of the program, whose events all precede its result."""


@dataclass(frozen=True, kw_only=True)
class _Tensor:
    """A tensor without its storage."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    def made(self) -> torch.Tensor:
        """Return such a tensor, without memory."""
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.stride, strict=True))
        storage = torch.empty(self.offset + max(0, last) + 1, dtype=self.dtype, device="meta")
        return storage.as_strided(self.shape, self.stride, self.offset)


@dataclass(frozen=True, kw_only=True)
class _Items:
    """A list or a tuple of values."""

    of: type
    values: tuple[Hashable, ...]


@dataclass(frozen=True, kw_only=True)
class ScratchCall:
    """An operation with its arguments, as numbers and a form."""

    scratch: Rule
    chip: Chip
    names: tuple[str, ...]
    """Of the arguments that have one; they are the last ones."""
    arguments: _Items
    ends: bool = False
    """Whether this is the end of the kernel, and not its beginning."""

    @classmethod
    def of(cls, scratch: Rule, chip: Chip, args: Any, kwargs: Any) -> "ScratchCall":
        """Return the call of an operation with such scratch."""
        found = _Items(of=tuple, values=tuple(_described(value) for value in (*args, *kwargs.values())))
        return cls(scratch=scratch, chip=chip, names=tuple(kwargs), arguments=found)

    @cached_property
    def form(self) -> Hashable:
        """What has to be alike where only lengths differ."""
        return id(self.scratch), self.names, _form(self.arguments)

    @cached_property
    def count(self) -> int:
        """How many `numbers` it has."""
        return len(self.numbers())

    @cached_property
    def kind(self) -> int:
        """A number that all calls of this form have, and no others of a run."""
        return hash(self.form)

    @property
    def end(self) -> "ScratchCall":
        """The end of the kernel."""
        return replace(self, ends=True)

    def numbers(self) -> list[int]:
        """Return the numbers that may depend on lengths."""
        return list(_numbers(self.arguments))

    def with_numbers(self, numbers: Sequence[int]) -> "ScratchCall":
        """Return the call with other numbers."""
        return replace(self, arguments=_with_numbers(self.arguments, iter(numbers).__next__))

    def sizes(self) -> Sizes:
        """Return the blocks and events of the kernel."""
        values = _made(self.arguments)
        given = len(values) - len(self.names)
        kwargs = dict(zip(self.names, values[given:], strict=True))
        found = self.scratch(values[:given], kwargs, self.chip)
        return found if isinstance(found, tuple) else _events(found)


def _described(value: Any) -> Hashable:
    if isinstance(value, torch.Tensor):
        offset = int(value.storage_offset())
        return _Tensor(shape=tuple(value.shape), stride=value.stride(), offset=offset, dtype=value.dtype)
    if isinstance(value, list | tuple):
        return _Items(of=type(value), values=tuple(map(_described, value)))
    return value


def _made(value: Any) -> Any:
    if isinstance(value, _Tensor):
        return value.made()
    return value.of(map(_made, value.values)) if isinstance(value, _Items) else value


def _form(value: Any) -> Hashable:
    if isinstance(value, _Tensor):
        return value.dtype, len(value.shape)
    if isinstance(value, _Items):
        return value.of, tuple(map(_form, value.values))
    return int if type(value) is int else (type(value), value)


def _numbers(value: Any) -> Iterator[int]:
    if isinstance(value, _Tensor):
        yield from (*value.shape, *value.stride, value.offset)
    elif isinstance(value, _Items):
        for each in value.values:
            yield from _numbers(each)
    elif type(value) is int:
        yield value


def _with_numbers(value: Any, following: Callable[[], int]) -> Any:
    if isinstance(value, _Tensor):
        shape = tuple(following() for _ in value.shape)
        stride = tuple(following() for _ in value.stride)
        return replace(value, shape=shape, stride=stride, offset=following())
    if isinstance(value, _Items):
        return replace(value, values=tuple(_with_numbers(each, following) for each in value.values))
    return following() if type(value) is int else value


def _events(kernel: KernelScratch) -> Sizes:
    """Return what a kernel allocates and frees, as `SimulatedGpu` does while it runs."""
    sizes: list[int] = []
    begins: list[int] = []
    ends: list[int] = []

    def take(blocks: Sequence[int], into: list[int]) -> list[int]:
        taken = []
        for size in blocks:
            if size:
                sizes.append(size)
                into.append(len(sizes))
                taken.append(-len(sizes))
        return taken[::-1]

    before = take(kernel.before, begins)
    for launch in kernel.first:
        begins += take(launch, begins)
    until_the_end = take(kernel.until_the_end, begins)
    ends += take(kernel.inputs, begins)
    held = take(kernel.held, ends)
    for launch in kernel.launches:
        ends += take(launch, ends)
    return tuple(sizes), tuple(begins), (*ends, *held, *until_the_end, *before)
