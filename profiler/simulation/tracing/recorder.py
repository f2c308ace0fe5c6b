"""Trace of the memory of a device, with the module that runs: every storage from allocation to end.

The module that is running on the simulated GPU, in forward and in backward.

In forward this is the top of a stack of modules. In backward no module is called, but every node of the graph has a
sequence number that grows as the graph is built. In forward the numbers at which a module begins and ends are noted;
in backward they map the running node to its module.
"""

import sys
import weakref
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import zip_longest
from typing import Any

import torch

from profiler.allocator.traces.trace import NO_LAYER, Site, Trace, TraceBuilder
from profiler.domain.cards.gpu import Chip
from profiler.domain.memory import Category, Phase
from profiler.seams.patching import patched
from profiler.simulation.tracing.work import WorkCounter

_PEFT_PREFIX = "base_model.model."


def plain_path(path: str) -> str:
    """Return a path as transformers names it, without peft's wrapper."""
    return path.removeprefix(_PEFT_PREFIX)


_ACCUMULATION = 1 << 62
"""Nodes that accumulate a gradient have the highest sequence number, so that they run first."""


class ModulePaths:
    """Paths of modules as transformers names them, without peft's wrapper."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._stack: list[str] = []
        self._numbers: list[int] = []
        self._paths: list[str] = []
        self.all_known = True
        """Whether no model ran whose modules have no names."""

    def know(self, model: Any, *, prefix: str = "") -> None:
        """Register the names of a model's modules; `prefix` distinguishes models."""
        for name, module in model.named_modules():
            self._names[id(module)] = prefix + plain_path(name)

    def current(self) -> str:
        """Return the innermost module in forward, or the module whose backward runs; empty outside of modules."""
        if self._stack:
            return self._stack[-1]
        node = torch._C._current_autograd_node()
        if node is None or not self._numbers:
            return ""
        number = node._sequence_nr()
        return "" if number >= _ACCUMULATION else self._paths[max(0, bisect_right(self._numbers, number) - 1)]

    def watching(self) -> AbstractContextManager[None]:
        """While active, calls of modules are noticed."""
        call = torch.nn.Module.__call__

        def noticed(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not self._names:
                # A model may run before its trainer is ready, for log-probabilities of its data.
                self.know(module)
            name = self._names.get(id(module))
            if name is None:
                name = self._stack[-1] if self._stack else self._unknown(module)
            self._enter(name)
            try:
                return call(module, *args, **kwargs)
            finally:
                self._leave()

        return patched([(torch.nn.Module, "__call__", noticed)])

    def _unknown(self, module: torch.nn.Module) -> str:
        self.all_known = self.all_known and not any(module.children())
        return ""

    def _enter(self, path: str) -> None:
        self._stack.append(path)
        self._note_change(path)

    def _leave(self) -> None:
        self._stack.pop()
        self._note_change(self._stack[-1] if self._stack else "")

    def _note_change(self, path: str) -> None:
        if torch.is_grad_enabled():
            self._numbers.append(torch._C._autograd._get_sequence_nr())
            self._paths.append(path)


_BY_PHASE = {
    Phase.LOAD: Category.WORKSPACE,
    Phase.ROLLOUT: Category.ACTIVATIONS,
    Phase.SCORE: Category.ACTIVATIONS,
    Phase.REWARD: Category.INPUTS,
    Phase.CRITIC: Category.ACTIVATIONS,
    Phase.FORWARD: Category.ACTIVATIONS,
    Phase.BACKWARD: Category.ACTIVATIONS,
    Phase.OPTIMIZER: Category.WORKSPACE,
    Phase.EVALUATION: Category.ACTIVATIONS,
    Phase.CHECKPOINT: Category.WORKSPACE,
    Phase.SYNC: Category.WORKSPACE,
}
"""The default category of each phase. Persistent memory of load and optimizer is attributed later by name."""


_OF_ANY_LENGTHS = (Phase.ROLLOUT, Phase.REWARD, Phase.SCORE, Phase.FORWARD, Phase.BACKWARD, Phase.EVALUATION)
"""Phases with rows of any lengths."""


Launches = tuple[tuple[int, ...], ...]
"""Bytes of the blocks of each launch of a kernel."""

_Kind = tuple[Category, int, str]
"""Category of a block, number of its site, and its name, which is empty if only the site is known."""
_CATEGORIES = tuple(Category)


class Recorder:
    """Records allocations as a trace. It is the observer of phases of a simulated trial.

    The category is set at the allocation. In backward, a tensor with the shape of a trained parameter is a gradient.
    Otherwise the context (`attributed`), the data type, the width and the phase decide, in this order. `attribute`
    corrects the category once the purpose of the memory is known.
    """

    def __init__(self) -> None:
        self._trace = TraceBuilder()
        self._blocks: dict[int, int] = {}
        self._watchers: dict[int, Any] = {}
        self._scope: Category | None = None
        self._scope_name = ""
        self._vocabulary = 0
        self._trained: dict[torch.Size, str] = {}
        self._kinds: dict[tuple[Hashable, ...], tuple[int, int, str]] = {}
        """With the category as its index: numbers and words, which the garbage collector does not visit."""
        self._sites: dict[tuple[Hashable, ...], int] = {}
        self._made_of: dict[int, int] = {}
        """While the model loads: block -> the block of the operand that it was made of."""
        self._alike = sys.maxsize
        self.modules = ModulePaths()
        self.operation: Any = None
        """The operation that is running, as the dispatch mode sees it."""
        self.operands: Sequence[torch.Tensor] = ()
        """The tensors that it reads, where they are known."""
        self.work: WorkCounter | None = None
        """Counts the work of the steps; None: it is not counted."""
        self.stream = 0
        """The stream on which tensors are made: 0 is the default one."""
        self.defers_scratch = False
        """Whether the scratch of kernels, whose size depends on lengths, is left open (`deferred`)."""
        self.repeats_steps = False
        """Whether a rollout repeats its steps, with the scratch that they took."""
        self.diverged: set[Chip] = set()
        """Diverged chips, which would have chosen another kernel somewhere: the trace does not hold for them."""

    def enter(self, phase: Phase) -> None:
        """Begin `phase`."""
        self._trace.enter(phase)
        if self.work is not None:
            self.work.enter(phase)

    @property
    def phase(self) -> Phase:
        """The phase that the trial is in."""
        return self._trace.phase

    def know_model(self, *, vocab_size: int, trained: Iterable[tuple[str, torch.Size]]) -> None:
        """Set the shapes by which logits (their width) and gradients (their parameters) are recognised."""
        self._vocabulary = vocab_size
        for name, shape in trained:
            if len(shape) > 1:
                # A name only where the shape says which parameter it is.
                self._trained[shape] = "" if shape in self._trained else name
        self._kinds.clear()

    def made(self, tensor: torch.Tensor, operand: int = 0) -> None:
        """Record a tensor that was just made on the device; a storage that is already recorded is skipped.

        Args:
            tensor: The tensor.
            operand: Which of `operands` it is made of.
        """
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._blocks:
            self.written()
            return
        size = storage.nbytes()
        if size == 0:
            return
        category, site, name = self._kind(tensor, operand)
        block = self._trace.allocate(size, category, site)
        self._blocks[key] = block
        if self._trace.phase is Phase.LOAD and (source := self._block_of(operand)) is not None:
            self._made_of[block] = source
        if self.stream:
            self._trace.streams[block] = self.stream
        if name:
            self._trace.names[block] = name
        self._watchers[key] = weakref.ref(storage, partial(self._ended, key))

    def written(self) -> None:
        """Note that the running operation writes into its first operand what it computes of the others."""
        if self.phase is Phase.OPTIMIZER and self._layer_of(0) == NO_LAYER and (block := self._block_of(0)) is not None:
            known = [layer for other in range(1, len(self.operands)) if (layer := self._layer_of(other)) != NO_LAYER]
            if known:
                self._trace.made_in_layer(block, known[0])

    def temporary(self, size_bytes: int, category: Category = Category.WORKSPACE) -> None:
        """Allocate `size_bytes` of scratch for a kernel and free it."""
        if size_bytes > 0:
            self._trace.free(self._trace.allocate(size_bytes, category, self._site()))

    def scratch(self, launches: Launches, kernel: str, *, by_capability: Mapping[Chip, Launches] | None = None) -> None:
        """Allocate scratch blocks for `kernel` and free them.

        Args:
            launches: Sizes in bytes of the blocks of each launch, which are in use at the same time; a launch frees
                its blocks, the last first, before the next one begins.
            kernel: Name in reports.
            by_capability: The same on the other chips that the run covers.
        """
        chips = by_capability or {}
        for blocks, *others in zip_longest(launches, *chips.values(), fillvalue=()):
            self.give_back(self.take(blocks, kernel, by_capability=dict(zip(chips, others, strict=True))))

    @property
    def leaves_scratch_open(self) -> bool:
        """Whether the scratch of the running kernel is left open."""
        return self.defers_scratch and self.phase in _OF_ANY_LENGTHS and not self.repeats_steps

    def deferred(self, call: Hashable) -> None:
        """Record that a kernel begins or ends here, in place of its scratch."""
        self._trace.free(self._trace.allocate(0, Category.WORKSPACE, self._site(call=call)))

    def holds_for(self, steps: int) -> None:
        """Announce that the scratch of a decoding step stays the same for `steps` more steps and then changes."""
        self._alike = min(self._alike, steps)

    def alike(self) -> int:
        """Return for how many more steps the scratch stays the same, and reset it."""
        alike, self._alike = self._alike, sys.maxsize
        return alike

    def take(
        self, sizes_bytes: tuple[int, ...], kernel: str, *, by_capability: Mapping[Chip, tuple[int, ...]]
    ) -> Sequence[int]:
        """Allocate scratch blocks for `kernel`; return them for `give_back`."""
        taken: list[int] = []
        with self.attributed(Category.WORKSPACE, kernel):
            for size, *others in zip_longest(sizes_bytes, *by_capability.values(), fillvalue=0):
                if not any((size, *others)):
                    continue
                taken.append(self._trace.allocate(size, Category.WORKSPACE, self._site()))
                if any(other != size for other in others):
                    self._trace.sizes_by_capability[taken[-1]] = dict(zip(by_capability, others, strict=True))
        return taken

    def give_back(self, taken: Sequence[int]) -> None:
        """Free the blocks of `take`, the last first."""
        for block in reversed(taken):
            self._trace.free(block)

    def attribute(self, tensors: Iterable[tuple[str, torch.Tensor]], category: Category) -> None:
        """Set the category of the storages of the named `tensors`, from their allocation on."""
        for name, tensor in tensors:
            block = self._blocks.get(tensor.untyped_storage()._cdata)
            if block is not None:
                self._trace.attribute(block, category)
                self._trace.names[block] = name
                self._say_of_sources(block)

    def _say_of_sources(self, block: int) -> None:
        """Give the blocks that a named one was made of its layer: copies in other types have no name of their own."""
        layer = self._trace.layer_of(block)
        while (source := self._made_of.pop(block, None)) is not None:
            if self._trace.layer_of(source) == NO_LAYER:
                self._trace.made_in_layer(source, layer)
            block = source

    @contextmanager
    def attributed(self, category: Category, name: str = "") -> Iterator[None]:
        """A context in which new memory belongs to `category`; `name` replaces the name of the operation."""
        outer = self._scope, self._scope_name
        self._scope, self._scope_name = category, name or self._scope_name
        try:
            yield
        finally:
            self._scope, self._scope_name = outer

    @contextmanager
    def on_stream(self, stream: int) -> Iterator[None]:
        """A context in which new tensors belong to `stream`, from whose blocks the allocator serves them."""
        outer, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = outer

    @property
    def trace(self) -> TraceBuilder:
        """The trace as it grows, for extrapolation and workspaces."""
        return self._trace

    def number_of(self, storage: torch.UntypedStorage) -> int:
        """Return a number that no other storage of the run has; 0 if the storage is not recorded."""
        return self._blocks.get(storage._cdata, -1) + 1

    def blocks_in_use(self) -> Mapping[int, int]:
        """Return the block of each storage in use, by the storage's address."""
        return self._blocks

    def renumber(self, blocks: Mapping[int, int]) -> None:
        """Replace the block numbers of storages in use."""
        for key, block in self._blocks.items():
            self._blocks[key] = blocks.get(block, block)

    def finished(self) -> Trace:
        """Return the trace so far."""
        return self._trace.finished()

    def _kind(self, tensor: torch.Tensor, operand: int) -> _Kind:
        """Return category, site and name of a tensor of the running operation; cached for equal ones."""
        module = self.modules.current()
        layer = NO_LAYER if module else self._layer_of(operand)
        phase = self._trace.phase
        # Any other phase says by itself whether it is backward.
        backward = phase is Phase.CRITIC and self._is_backward()
        of_call = id(self.operation), id(self._scope), self._scope_name, id(phase), backward
        key = *of_call, tuple(tensor.shape), id(tensor.dtype), module, layer
        kind = self._kinds.get(key)
        if kind is None:
            category = self._category(tensor)
            owner = self._trained.get(tensor.shape) if category is Category.GRADIENTS else None
            name = f"gradient of {owner}" if owner else ""
            kind = self._kinds[key] = _CATEGORIES.index(category), self._site(tensor, operand), name
        return _CATEGORIES[kind[0]], kind[1], kind[2]

    def _layer_of(self, operand: int) -> int:
        """Return the layer of an operand."""
        block = self._block_of(operand)
        return NO_LAYER if block is None else self._trace.layer_of(block)

    def _block_of(self, operand: int) -> int | None:
        """Return the block of an operand; None if it has none."""
        if operand >= len(self.operands):
            return None
        return self._blocks.get(self.operands[operand].untyped_storage()._cdata)

    def _site(self, tensor: torch.Tensor | None = None, operand: int = 0, call: Hashable = None) -> int:
        """Return the number of the site where the running operation makes `tensor`, or raw bytes."""
        module = self.modules.current()
        layer = NO_LAYER if module else self._layer_of(operand)
        shape, dtype = ((), "") if tensor is None else (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        key = self._scope_name or id(self.operation), shape, dtype, module, layer, call
        found = self._sites.get(key)
        if found is None:
            name = self._scope_name or _name_of(self.operation)
            site = Site(operation=name, shape=shape, dtype=dtype, module=module, operand_layer=layer, call=call)
            found = self._sites[key] = self._trace.site_index(site)
        return found

    def _ended(self, key: int, _: Any) -> None:
        self._trace.free(self._blocks.pop(key))
        del self._watchers[key]

    def _category(self, tensor: torch.Tensor) -> Category:
        shape = tensor.shape
        if shape in self._trained and self._is_backward():
            return Category.GRADIENTS
        if self._scope is not None:
            return self._scope
        if not tensor.dtype.is_floating_point and self.phase is not Phase.LOAD:
            return Category.INPUTS
        if self._vocabulary and len(shape) > 1 and shape[-1] == self._vocabulary and self.phase is not Phase.OPTIMIZER:
            return Category.LOGITS
        return _BY_PHASE[self.phase]

    def _is_backward(self) -> bool:
        """Return whether backward runs; the phase of a critic also has its forward."""
        if self.phase is Phase.CRITIC:
            return torch._C._current_autograd_node() is not None
        return self.phase is Phase.BACKWARD


def _name_of(operation: Any) -> str:
    """``aten.mm.default`` -> ``aten.mm``; other overloads keep their name."""
    return str(operation or "").removesuffix(".default")
