"""The linear layers of a decoder layer, of 16, 32 or 4 bits, and their adapters, operation by operation."""

from collections.abc import Callable
from dataclasses import dataclass, field

from profiler.analytical.formulas.layers.decoder_layer import adapted_parts
from profiler.analytical.formulas.layers.eager_attention import drops_inputs
from profiler.analytical.formulas.models.parameters import projections
from profiler.analytical.formulas.models.tensor_groups import Projection
from profiler.analytical.formulas.models.trained import FLOAT32_BYTES, element_bytes, lora_rank, trains_everything
from profiler.analytical.formulas.models.weights import NF4_BLOCK, widened_bytes
from profiler.analytical.formulas.sizes.trial_keys import Batch, DecoderShape, TrialKeys
from profiler.analytical.replayed.decoder.operations import Operations
from profiler.analytical.replayed.decoder.tape import Gradients, Node, Value
from profiler.domain.trials.trial import Tuning


@dataclass(kw_only=True)
class Ends:
    """Where the gradient of a layer's output enters what is computed again."""

    of_output: Value
    """That gradient, which becomes that of the layer's input."""
    of_result: Value | None = None
    """What backward makes of it first for the result of the last linear layer; None: the gradient itself."""
    of_last: Value | None = None
    """And for the last operation that saves a tensor, behind that layer's adapter or a product with 4-bit weights."""
    entered: list[tuple[Node, Value]] = field(default_factory=list)

    def enter(self, node: Node | None, gradient: Value | None = None) -> None:
        """Let a gradient, or that of the output, enter an operation, if it has a backward."""
        if node is not None:
            self.entered.append((node, gradient or self.of_output))

    def backward(self, tape: Operations) -> None:
        """Run the backward of what was computed again."""
        for node, gradient in self.entered:
            node.gradient = tape.same(gradient)
        tape.free(self.of_output, self.of_result, self.of_last)
        tape.run_backward()


class LinearLayers:
    """The linear layers of one decoder layer, by their names."""

    runs_again = False
    """Whether the layer is computed again, so that it makes the copies of weights that autocast casts itself."""

    def __init__(
        self, spec: TrialKeys, kind: DecoderShape, batch: Batch, *, adapted: bool, keep: Callable[[Value], None]
    ) -> None:
        """Know the sizes; the arguments are those of `DenseLayer`."""
        sizes = element_bytes(spec)
        self._spec, self._keep = spec, keep
        self.parts = {part.name: part for part in projections(kind)}
        parts = adapted_parts(spec, kind, tuple(self.parts)) if adapted else ()
        self.adapted = {part.name for part in parts}
        self.in_4_bits = spec.tuning is Tuning.QLORA
        self._trains, self._autocast = trains_everything(spec), bool(spec.mixed_precision)
        self._positions, self._weight, self._adapter = int(batch.positions), int(sizes.weight), int(sizes.adapter)
        self.element = int(sizes.compute)
        """Bytes of a value of their results."""
        self.low = self.element if self._autocast else self._adapter
        """Bytes of a value that an adapter computes."""

    def run(self, tape: Operations, value: Value, name: str, *, ends: Ends | None = None) -> Value | None:
        """Run a linear layer with its adapter; with `ends` up to the last tensor that it saves."""
        part, is_adapted = self.parts[name], name in self.adapted
        if self.in_4_bits:
            base: Value | None = self._product_of_4_bits(tape, value, part)
        else:
            base = self._product(tape, value, part, None if is_adapted else ends)
        if base is None or not is_adapted:
            return base
        if ends is not None:
            ends.enter(base.node, ends.of_result)
        return self._with_adapter(tape, value, base, part, ends)

    def _product(self, tape: Operations, value: Value, part: Projection, ends: Ends | None) -> Value | None:
        """Run the product with a weight; `addmm` makes the gradient of the input first, `mm` that of the weight."""
        ins, weight, element, is_cast = value.values, int(part.weights), self.element, self._weight != self.element
        trains, has_bias = self._trains, bool(part.has_bias)
        # What autocast keeps to its end, and copies that a forward leaves, are not the layer's own.
        is_own = is_cast and (self.runs_again or not (trains or tape.records))
        copy = tape.make(weight, element) if is_own else None
        cast = tape.sink(lambda _: self._keep(tape.make(weight, self._weight))) if is_cast and trains else None
        narrow = tape.cast(value, element)
        out = None if ends is not None else tape.make(self._positions * int(part.out_features), element)

        def backward(_: Value) -> Gradients:
            found = tape.make_view(ins, element) if has_bias or not trains else None
            made = tape.make(weight, element) if trains else None
            found = found or tape.make_view(ins, element)
            if made is None or cast is not None:
                return found, made
            self._keep(made)
            return found, None

        saved = [*([narrow] if trains else ()), *([copy] if copy is not None else ())]
        node = tape.record(out, (narrow, cast), backward, *saved)
        if ends is not None:
            ends.enter(node, ends.of_result)
        tape.free(narrow, copy)
        return out

    def _product_of_4_bits(self, tape: Operations, value: Value, part: Projection) -> Value:
        """Run the product with a weight of 4 bits, which is widened for many rows; peft copies the result."""
        weight = int(part.weights)
        is_widened = widened_bytes(self._spec, weight, self._positions, autocast=self._autocast)
        scratch = self._widened(tape, weight, scales=2) if is_widened else []
        out = tape.make(self._positions * int(part.out_features), self.element)
        tape.free(*scratch)
        tape.record(out, (value,), lambda _: (self.through_4_bits(tape, part),))
        if part.name in self.adapted:
            before, out = out, tape.copy(out)
            tape.free(before)
        return out

    def _widened(self, tape: Operations, values: int, *, scales: int) -> list[Value]:
        """Return the scales of a weight of 4 bits in float32, of which a second tensor is shifted, and the weight."""
        count = scales if self._spec.bnb_4bit_use_double_quant else 0
        made = [tape.make(-(-values // NF4_BLOCK), FLOAT32_BYTES) for _ in range(count)]
        return [*reversed(made), tape.make(values, self.element)]

    def through_4_bits(self, tape: Operations, part: Projection) -> Value:
        """Return the gradient of the input of a product with a weight of 4 bits."""
        *scales, wide = self._widened(tape, int(part.weights), scales=1)
        tape.free(*scales)
        found = tape.make(self._positions * int(part.in_features), self.element)
        tape.free(wide)
        return found

    def _with_adapter(
        self, tape: Operations, value: Value, base: Value, part: Projection, ends: Ends | None
    ) -> Value | None:
        """Run an adapter, and add its result to that of the layer, which goes."""
        leaves_type = self.in_4_bits and self._autocast
        given = tape.same(value) if leaves_type else tape.cast(value, self._adapter)
        dropped = self._dropped(tape, given)
        narrow = tape.cast(dropped, self.low)
        first = tape.make(self._positions * int(lora_rank(self._spec)), self.low)
        _record_matrix(tape, first, narrow)
        tape.free(narrow, dropped)
        if ends is not None:
            ends.enter(_record_matrix(tape, None, first), ends.of_last)
            tape.free(first, given, base)
            return None
        second = tape.make(self._positions * int(part.out_features), self.low)
        _record_matrix(tape, second, first)
        tape.free(first)
        scaled = tape.mapped(second, saves=False)
        tape.free(second)
        if self.in_4_bits:
            narrow = tape.cast(scaled, base.element)
            result = tape.add(base, narrow)
            tape.free(scaled, base, narrow, given)
            return result
        added = tape.add(base, scaled)
        tape.free(scaled, base)
        result = tape.cast(added, base.element)
        tape.free(added, given)
        return result

    def _dropped(self, tape: Operations, value: Value) -> Value:
        """Return what dropout leaves of the input of an adapter; the mask has one byte of each value."""
        if not drops_inputs(self._spec):
            return tape.same(value)
        mask, out = tape.make(value.values, 1), tape.like(value)
        tape.record(out, (value,), lambda gradient: (tape.like(gradient),), mask)
        tape.free(mask)
        return out


def _record_matrix(tape: Operations, out: Value | None, given: Value) -> Node | None:
    """Record a product with a trained matrix of an adapter, of its type."""
    values, element = given.values, given.element
    return tape.record(out, (given,), lambda _: (tape.make_view(values, element),), given, always=True)
