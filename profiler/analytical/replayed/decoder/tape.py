"""Tensors of a program one by one, as torch has them, with their operations: needed by names and by autograd."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from profiler.analytical.formulas.models.trained import FLOAT32_BYTES
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

    def cast(self, value: Value, element: int) -> Value:
        """Return a copy in another type, or the tensor itself."""
        if value.element == element:
            return self.same(value)
        out, before = self.make(value.values, element), value.element
        self.record(out, (value,), lambda gradient: (self.make(gradient.values, before),))
        return out

    def add(self, first: Value, second: Value) -> Value:
        """Return the sum, in the wider type."""
        out = self.make(first.values, max(first.element, second.element))
        elements = first.element, second.element

        def backward(gradient: Value) -> Gradients:
            return tuple(
                gradient if element == gradient.element else self.make(gradient.values, element) for element in elements
            )

        self.record(out, (first, second), backward)
        return out

    def mapped(self, value: Value, *, saves: bool) -> Value:
        """Multiply by a number, or with `saves` activate: one tensor forward, one backward."""
        out = self.like(value)
        self.record(out, (value,), lambda gradient: (self.like(gradient),), *((value,) if saves else ()))
        return out

    def copy(self, value: Value) -> Value:
        """Return a copy, whose gradient is that of the tensor."""
        out = self.like(value)
        self.record(out, (value,), lambda gradient: (gradient,))
        return out

    def product(self, first: Value, second: Value) -> Value:
        """Multiply two tensors, and save both."""
        out = self.like(first)
        self.record(out, (first, second), self.both_gradients, first, second)
        return out

    def both_gradients(self, gradient: Value) -> Gradients:
        """Return the gradients of both factors, of which that of the second is made first."""
        second = self.like(gradient)
        return self.like(gradient), second

    def turned(self, value: Value, element: int) -> Value:
        """Apply the rotary embedding: the product with the cosine, the turned halves, and their product with the sine.

        Cosine and sine have the type of the residual stream, of `element` bytes.
        """
        by_cosine, half = self.make(value.values, element), self.make(value.values // 2, value.element)
        joined = self.like(value)
        self.free(half)
        by_sine = self.like(by_cosine)
        self.free(joined)
        out = self.like(by_cosine)
        self.free(by_cosine, by_sine)
        before = value.element

        def product(gradient: Value) -> Value:
            made = self.like(gradient)
            if before == element:
                return made
            narrow = self.make(made.values, before)
            self.free(made)
            return narrow

        def backward(gradient: Value) -> Gradients:
            by_sine, half = product(gradient), self.make(gradient.values // 2, before)
            found = self.like(by_sine)
            self.free(half)
            self.free(by_sine, self.like(found))
            self.free(product(gradient))
            return (found,)

        self.record(out, (value,), backward)
        return out

    def repeated(self, value: Value, values: int) -> Value:
        """Repeat keys or values for the queries that share them, whose gradient is a sum; those of one query stay."""
        if value.values == values:
            return self.same(value)
        out, before = self.make(values, value.element), value.values
        self.record(out, (value,), lambda gradient: (self.make(before, gradient.element),))
        return out

    def norm(self, value: Value, width: int, keep: Callable[[Value], None] | None) -> Value:
        """Compute in float32: the input, its square, the product with one number per row; then the result twice.

        Args:
            value: Rows of `width` values.
            width: How many are normalised together.
            keep: What becomes of the gradient of a trained weight; None: it is not trained.
        """
        wide = self.cast(value, FLOAT32_BYTES)
        square = self.like(wide)
        self.record(square, (wide,), lambda _: (self._through_square(wide),), wide)
        inverse = self.make(value.values // width, FLOAT32_BYTES)
        self.record(inverse, (square,), lambda _: (self.like(wide),))
        self.free(square)
        product = self.like(wide)
        self.record(product, (inverse, wide), lambda _: self._through_both(inverse, wide), inverse, wide)
        self.free(inverse, wide)
        narrow = self.cast(product, value.element)
        out = self.like(narrow)

        def backward(gradient: Value) -> Gradients:
            found = self.like(gradient)
            if keep is not None:
                self.free(self.like(gradient))
                keep(self.make(width, gradient.element))
            return (found,)

        self.record(out, (narrow,), backward, *((narrow,) if keep is not None else ()))
        self.free(narrow, product)
        return out

    def _through_square(self, wide: Value) -> Value:
        """Return the gradient of a square: its power, this times two, and the product with the gradient."""
        power, twice, found = self.like(wide), self.like(wide), self.like(wide)
        self.free(twice, power)
        return found

    def _through_both(self, inverse: Value, wide: Value) -> Gradients:
        """Return the gradients of one number per row, which is a sum over the row, and of the rows."""
        of_rows, found = self.like(wide), self.like(wide)
        summed = self.like(inverse)
        self.free(of_rows)
        return summed, found

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
