"""Tensors of a program one by one, as torch has them: a block is freed when neither a name nor autograd needs it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from profiler.analytical.replayed.requests import Requests


class Value:
    """A tensor. Its block is freed when nobody needs it any more."""

    __slots__ = ("block", "element", "is_view", "needed", "node", "values")

    def __init__(self, block: int, values: int, element: int) -> None:
        """Describe a tensor that its maker needs."""
        self.block, self.values, self.element = block, values, element
        self.needed = 1
        self.node: Node | None = None
        self.is_view = False
        """Whether it is the result of a product in another shape, to which autograd adds nothing in its place."""


Gradients = Sequence["Value | None"]
"""Gradients of inputs, one of each."""


@dataclass(eq=False, slots=True)
class Node:
    """What autograd keeps of an operation."""

    inputs: tuple["Node | None", ...]
    backward: Callable[[Value], Gradients]
    saved: tuple[Value, ...]
    gradient: Value | None = None


@dataclass(kw_only=True)
class Tape:
    """Operations in their order, of which backward runs the last one first."""

    requests: Requests
    records: bool
    """Whether autograd keeps what backward needs."""
    nodes: list[Node] = field(default_factory=list)

    def make(self, values: int, element: int) -> Value:
        """Request a tensor of `values` values of `element` bytes."""
        return Value(self.requests.allocate(values * element)[0], values, element)

    def make_view(self, values: int, element: int) -> Value:
        """Request the result of a product, which autograd gets in another shape."""
        made = self.make(values, element)
        made.is_view = True
        return made

    def like(self, other: Value) -> Value:
        """Request a tensor of the shape and type of another one."""
        return self.make(other.values, other.element)

    def need(self, *values: Value) -> None:
        """Need tensors once more."""
        for value in values:
            value.needed += 1

    def free(self, *values: "Value | None") -> None:
        """Need tensors once less; those that nobody needs are freed, in this order."""
        for value in values:
            if value is not None:
                value.needed -= 1
                if not value.needed:
                    self.requests.free((value.block,))

    def same(self, value: Value) -> Value:
        """Return the tensor itself, needed once more."""
        self.need(value)
        return value

    def record(
        self,
        out: Value | None,
        inputs: Sequence["Value | Node | None"],
        backward: Callable[[Value], Gradients],
        *saved: Value,
        always: bool = False,
    ) -> Node | None:
        """Keep an operation for backward, with the tensors that it saves, if one of its inputs needs a gradient.

        An input may be an operation itself; with `always` there is a trained weight.
        """
        found = tuple(each.node if isinstance(each, Value) else each for each in inputs)
        if not self.records or not (always or any(each is not None for each in found)):
            return None
        self.need(*saved)
        node = Node(found, backward, saved)
        self.nodes.append(node)
        if out is not None:
            out.node = node
        return node

    def sink(self, keep: Callable[[Value], None]) -> Node | None:
        """Return an operation that ends with the gradient of a weight, of which `keep` makes another."""
        if not self.records:
            return None

        def backward(gradient: Value) -> Gradients:
            keep(gradient)
            return ()

        self.nodes.append(Node((), backward, ()))
        return self.nodes[-1]

    def leaf(self, value: Value) -> Node | None:
        """Let a tensor be an input of which backward computes the gradient; return what gets it, if it records."""
        value.node = Node((), _nothing, ()) if self.records else None
        return value.node

    def run_backward(self) -> None:
        """Run the backward of all operations that have a gradient, from the last on.

        Autograd frees what an operation has saved, then its gradient; then it adds to gradients that are there, in
        their place if nobody else needs them (`InputBuffer::accumulate` in torch's `input_buffer.cpp`).
        """
        while self.nodes:
            node = self.nodes.pop()
            if node.gradient is None:
                self.free(*node.saved)
                continue
            gradient, node.gradient = node.gradient, None
            found = node.backward(gradient)
            self.free(*node.saved)
            for each in found:
                if each is gradient:
                    self.need(each)
            self.free(gradient)
            for target, each in zip(node.inputs, found, strict=True):
                if each is not None:
                    self._deliver(target, each)

    def _deliver(self, target: Node | None, found: Value) -> None:
        if target is None:
            self.free(found)
        elif target.gradient is None:
            target.gradient = found
        else:
            before = target.gradient
            if before.needed > 1 or before.is_view:
                target.gradient = self.like(before)
                self.free(before)
            self.free(found)


def _nothing(_: Value) -> Gradients:
    return ()
