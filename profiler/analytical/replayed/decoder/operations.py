"""The operations of a decoder layer: which tensors each makes, saves, and makes of its gradient."""

from collections.abc import Callable

from profiler.analytical.formulas.models.trained import FLOAT32_BYTES
from profiler.analytical.replayed.decoder.tape import Gradients, Tape, Value


class Operations(Tape):
    """A tape, and what is run on it."""

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
