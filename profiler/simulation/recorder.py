"""Books on the memory of the simulated GPU: every storage from its making to its end, by phase and category."""

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from profiler.allocator.trace import Trace, TraceBuilder
from profiler.domain.memory import Category, Phase

_BY_PHASE = {
    Phase.LOAD: Category.WORKSPACE,
    Phase.ROLLOUT: Category.ACTIVATIONS,
    Phase.SCORE: Category.ACTIVATIONS,
    Phase.REWARD: Category.INPUTS,
    Phase.FORWARD: Category.ACTIVATIONS,
    Phase.BACKWARD: Category.ACTIVATIONS,
    Phase.OPTIMIZER: Category.WORKSPACE,
}
"""What memory is when nothing more is known of it. What load and optimizer leave behind is attributed later by name."""


class Recorder:
    """Records allocations as a trace. It is the observer of phases of a simulated trial.

    A category is decided when memory is made: in backward what has the shape of a trained parameter is a gradient; else
    the context decides (`attributed`), the data type, the width and the phase, in this order. `attribute` corrects it
    once it is known what the memory was for.
    """

    def __init__(self) -> None:
        self._trace = TraceBuilder()
        self._blocks: dict[int, int] = {}
        self._watchers: dict[int, Any] = {}
        self._scope: Category | None = None
        self._vocabulary = 0
        self._trainable_shapes: frozenset[torch.Size] = frozenset()

    def enter(self, phase: Phase) -> None:
        """`phase` begins."""
        self._trace.enter(phase)

    @property
    def phase(self) -> Phase:
        """The phase that the trial is in."""
        return self._trace.phase

    def know_model(self, *, vocab_size: int, trainable_shapes: Iterable[torch.Size]) -> None:
        """Tell what to recognise by shape: logits by their width, gradients by the parameters they belong to."""
        self._vocabulary = vocab_size
        self._trainable_shapes = frozenset(shape for shape in trainable_shapes if len(shape) > 1)

    def made(self, tensor: torch.Tensor) -> None:
        """`tensor` has just been made on the device, with a storage of its own (or one that is already known)."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._blocks:
            return
        size = storage.nbytes()
        if size == 0:
            return
        block = self._trace.allocate(size, self._category(tensor))
        self._blocks[key] = block
        self._watchers[key] = weakref.ref(storage, lambda _: self._ended(key))

    def temporary(self, size_bytes: int, category: Category = Category.WORKSPACE) -> None:
        """A kernel takes `size_bytes` of scratch and gives it back."""
        if size_bytes > 0:
            self._trace.free(self._trace.allocate(size_bytes, category))

    def keep(self, size_bytes: int, category: Category) -> None:
        """A library takes `size_bytes` and never gives it back."""
        self._trace.allocate(size_bytes, category)

    def attribute(self, tensors: Iterable[torch.Tensor], category: Category) -> None:
        """The storages of `tensors` are of `category`, and always were."""
        for tensor in tensors:
            block = self._blocks.get(tensor.untyped_storage()._cdata)
            if block is not None:
                self._trace.attribute(block, category)

    @contextmanager
    def attributed(self, category: Category) -> Iterator[None]:
        """A context in which new memory belongs to `category`."""
        outer, self._scope = self._scope, category
        try:
            yield
        finally:
            self._scope = outer

    def finished(self) -> Trace:
        """The trace so far."""
        return self._trace.finished()

    def _ended(self, key: int) -> None:
        self._trace.free(self._blocks.pop(key))
        del self._watchers[key]

    def _category(self, tensor: torch.Tensor) -> Category:
        shape = tensor.shape
        if self.phase is Phase.BACKWARD and shape in self._trainable_shapes:
            return Category.GRADIENTS
        if self._scope is not None:
            return self._scope
        if not tensor.dtype.is_floating_point and self.phase is not Phase.LOAD:
            return Category.INPUTS
        if self._vocabulary and len(shape) > 1 and shape[-1] == self._vocabulary and self.phase is not Phase.OPTIMIZER:
            return Category.LOGITS
        return _BY_PHASE[self.phase]
