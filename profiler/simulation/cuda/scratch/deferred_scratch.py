"""Scratch of kernels that is left open while a run is recorded, and computed for other lengths later.

How much a reduction takes is a staircase over the lengths of rows. A run to learn from records two empty blocks where a
kernel begins and ends, with the operation and its arguments; the rule of the kernel answers for any lengths.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from profiler.domain.cards.gpu import Chip
from profiler.simulation.cuda.scratch.kernel_scratch import KernelScratch, Scratch

Sizes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Sizes in bytes of the blocks of a kernel; then the events before its result and after it, as `Trace.events` with the
blocks counted from 0."""


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
class ScratchCall:
    """An operation with its arguments, as numbers and a form."""

    scratch: Scratch
    chip: Chip
    form: tuple[Hashable, ...]
    """What has to be alike where only lengths differ."""
    arguments: TreeSpec
    leaves: tuple[Hashable, ...]
    ends: bool = False
    """Whether this is the end of the kernel, and not its beginning."""

    @classmethod
    def of(cls, scratch: Scratch, chip: Chip, args: Any, kwargs: Any) -> "ScratchCall":
        """Return the call of an operation with such scratch."""
        leaves, arguments = tree_flatten((args, kwargs))
        found = tuple(_described(leaf) for leaf in leaves)
        form = tuple(_form(leaf) for leaf in found)
        return cls(
            scratch=scratch, chip=chip, form=(id(scratch), str(arguments), *form), arguments=arguments, leaves=found
        )

    @property
    def count(self) -> int:
        """How many `numbers` it has."""
        return sum(len(_numbers(leaf)) for leaf in self.leaves)

    @property
    def kind(self) -> int:
        """A number that all calls of this form have, and no others of a run."""
        return hash(self.form)

    @property
    def end(self) -> "ScratchCall":
        """The end of the kernel."""
        return replace(self, ends=True)

    def numbers(self) -> list[int]:
        """Return the numbers that may depend on lengths."""
        return [number for leaf in self.leaves for number in _numbers(leaf)]

    def with_numbers(self, numbers: Sequence[int]) -> "ScratchCall":
        """Return the call with other numbers."""
        left = iter(numbers)
        return replace(self, leaves=tuple(_with_numbers(leaf, left.__next__) for leaf in self.leaves))

    def sizes(self) -> Sizes:
        """Return the blocks and events of the kernel."""
        leaves = [leaf.made() if isinstance(leaf, _Tensor) else leaf for leaf in self.leaves]
        args, kwargs = tree_unflatten(leaves, self.arguments)
        return _events(self.scratch(args, kwargs, self.chip))


def _described(leaf: Any) -> Hashable:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return _Tensor(shape=tuple(leaf.shape), stride=leaf.stride(), offset=int(leaf.storage_offset()), dtype=leaf.dtype)


def _form(leaf: Hashable) -> Hashable:
    if isinstance(leaf, _Tensor):
        return leaf.dtype, len(leaf.shape)
    return int if type(leaf) is int else (type(leaf), leaf)


def _numbers(leaf: Hashable) -> tuple[int, ...]:
    if isinstance(leaf, _Tensor):
        return (*leaf.shape, *leaf.stride, leaf.offset)
    return (leaf,) if type(leaf) is int else ()


def _with_numbers(leaf: Hashable, following: Callable[[], int]) -> Hashable:
    if isinstance(leaf, _Tensor):
        shape = tuple(following() for _ in leaf.shape)
        stride = tuple(following() for _ in leaf.stride)
        return replace(leaf, shape=shape, stride=stride, offset=following())
    return following() if type(leaf) is int else leaf


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
