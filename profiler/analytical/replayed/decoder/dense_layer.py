"""A decoder layer operation by operation, in the order of the statements of transformers, peft and bitsandbytes.

The program is that of Llama's layers, and of those that differ from them in sizes and in a norm on queries and keys
(`is_known`). Each result has a block of its own, and lives as long as a name of the program or autograd needs it.
Copies and gradients of adapters, and what the kernels of sums need, are left out.

Source: `modeling_llama.py`, `modeling_qwen3.py` and `integrations/sdpa_attention.py` of transformers 5; `lora/layer.py`
and `lora/bnb.py` of peft 0.21; `autograd/_functions.py` of bitsandbytes 0.50; torch's `FunctionsManual.cpp`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from profiler.analytical.formulas.layers.decoder_layer import adapted_parts
from profiler.analytical.formulas.layers.eager_attention import drops_inputs, makes_scores, repeats_keys
from profiler.analytical.formulas.models.parameters import is_mixture, layers_of, projections, query_width
from profiler.analytical.formulas.models.tensor_groups import Projection
from profiler.analytical.formulas.models.trained import (
    FLOAT32_BYTES,
    element_bytes,
    has_bfloat16_adapters,
    lora_rank,
    trains_everything,
)
from profiler.analytical.formulas.models.weights import NF4_BLOCK, widened_bytes
from profiler.analytical.formulas.sizes.trial_keys import Batch, DecoderShape, TrialKeys, is_masked
from profiler.analytical.replayed.decoder.tape import Gradients, Node, Tape, Value
from profiler.domain.trials.trial import Attention, Tuning


def is_known(spec: TrialKeys, kind: DecoderShape, batch: Batch) -> bool:
    """Return whether a layer is replayed operation by operation.

    It is one of Llama's kind, its residual stream has the type of the weights, which autocast may narrow, and its
    attention is a kernel that gets all rows as they are.
    """
    layers, sizes = layers_of(kind), element_bytes(spec)
    is_plain = not (layers.has_fused_attention or layers.has_fused_mlp or layers.concatenates_heads)
    is_plain = is_plain and not (layers.scales_stream or layers.has_float32_norms or layers.gates_output)
    is_plain = is_plain and not (layers.has_sinks or layers.scales_layers or layers.alternates)
    is_plain = is_plain and not (layers.normalises_all_heads or layers.normalises_after_values)
    has_kernel = not makes_scores(spec, kind, batch, autocast=bool(spec.mixed_precision))
    casts_to_compute = spec.tuning is not Tuning.QLORA and spec.attn_implementation is Attention.SDPA
    unpads = spec.attn_implementation is Attention.FLASH_ATTENTION_2 and bool(batch.has_mask)
    return (
        is_plain
        and layers.has_input_norms
        and int(kind.norms_per_layer) == _NORMS
        and kind.latent is None
        and kind.linear is None
        and kind.layer_inputs is None
        and not (bool(is_mixture(kind)) or kind.keys_are_values or kind.shares_keys)
        and not spec.use_liger_kernel
        and bool(sizes.weight == sizes.outer)
        and bool(sizes.weight == sizes.stream)
        and bool(sizes.compute == sizes.weight or casts_to_compute)
        and not (has_bfloat16_adapters(spec) and bool(sizes.adapter_casts))
        and has_kernel
        and not unpads
    )


_NORMS = 2
"""Before attention and before the MLP."""


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

    def backward(self, tape: Tape) -> None:
        """Run the backward of what was computed again."""
        for node, gradient in self.entered:
            node.gradient = tape.same(gradient)
        tape.free(self.of_output, self.of_result, self.of_last)
        tape.run_backward()


class DenseLayer:
    """Forward and backward of one decoder layer."""

    def __init__(
        self, spec: TrialKeys, kind: DecoderShape, batch: Batch, *, adapted: bool, keep: Callable[[Value], None]
    ) -> None:
        """Know the sizes.

        Args:
            spec: The trial.
            kind: A model with the layers of one kind.
            batch: The rows.
            adapted: Whether adapters are used.
            keep: What becomes of the gradient of a trained weight.
        """
        sizes = element_bytes(spec)
        self._spec, self._kind, self._batch, self._keep = spec, kind, batch, keep
        self._parts = {part.name: part for part in projections(kind)}
        parts = adapted_parts(spec, kind, tuple(self._parts)) if adapted else ()
        self._adapted = {part.name for part in parts}
        self._trains, self._in_4_bits = trains_everything(spec), spec.tuning is Tuning.QLORA
        self._autocast, self._positions = bool(spec.mixed_precision), int(batch.positions)
        self._weight, self._element, self._adapter = int(sizes.weight), int(sizes.compute), int(sizes.adapter)
        self._low = self._element if self._autocast else self._adapter
        self._ends: Ends | None = None

    def forward(self, tape: Tape, stream: Value) -> Value:
        """Run the layer; return its output."""
        residual, result = self._run(tape, stream)
        out = tape.add(residual, _whole(result))
        tape.free(result, residual)
        return out

    def again(self, tape: Tape, stream: Value, gradient: Value) -> Ends:
        """Run the layer again for the gradient of its output, up to the last operation that saves a tensor.

        Then what it has goes (`_StopRecomputationError` in torch's `utils/checkpoint.py`). The input of the layer goes
        with the tensors that were saved first.
        """
        ends = self._ends = self._begin_backward(tape, gradient)
        residual, result = self._run(tape, stream)
        ends.enter(residual.node)
        tape.free(result, residual)
        self._ends = None
        first = next(node for node in tape.nodes if node.saved)
        first.saved = (*first.saved, stream)
        return ends

    def _run(self, tape: Tape, stream: Value) -> tuple[Value, Value | None]:
        """Return the residual stream after attention, and the result of the MLP."""
        normed = self.norm(tape, stream, int(self._kind.hidden_size))
        attended = self._attention(tape, normed)
        tape.free(normed)
        residual = tape.add(stream, attended)
        tape.free(attended)
        normed = self.norm(tape, residual, int(self._kind.hidden_size))
        result = self._mlp(tape, normed)
        tape.free(normed)
        return residual, result

    def _begin_backward(self, tape: Tape, gradient: Value) -> Ends:
        """Make what backward makes of the gradient of a layer's output before it computes the layer again."""
        values, ends = gradient.values, Ends(of_output=gradient)
        if self._element != gradient.element:
            ends.of_result = tape.make(values, self._element)
        if "down_proj" not in self._adapted:
            ends.of_last = self._through_4_bits(tape, self._parts["down_proj"]) if self._in_4_bits else None
        elif self._low == self._element:
            ends.of_last = tape.make(values, self._low)
        else:
            wide = tape.make(values, self._low)
            ends.of_result = tape.like(gradient)
            ends.of_last = tape.like(wide)
            tape.free(wide)
        return ends

    # ---- attention and MLP -------------------------------------------------------------------------------------------

    def _attention(self, tape: Tape, normed: Value) -> Value:
        """Run attention by a kernel; with a mask keys and values are repeated before it."""
        kind, batch, is_sdpa = self._kind, self._batch, self._spec.attn_implementation is Attention.SDPA
        repeats = is_sdpa and bool(repeats_keys(kind, batch))
        queries, keys = (self._heads(tape, normed, name, copies=True) for name in ("q_proj", "k_proj"))
        values = self._heads(tape, normed, "v_proj", copies=repeats)
        turned, turned_keys = (tape.turned(each, self._weight) for each in (queries, keys))
        tape.free(queries, keys)
        width = self._positions * int(query_width(kind))
        shared = [turned_keys, values]
        repeated = [tape.repeated(each, width) if repeats else tape.same(each) for each in shared]
        given = [tape.cast(each, self._element) for each in (turned, *repeated)]
        is_square = is_sdpa and bool(is_masked(kind, batch))
        masks = [tape.make(int(batch.rows) * int(batch.width) ** 2, self._element)] if is_square else []
        numbers = self._positions * int(kind.num_attention_heads)
        out, sums = tape.make(turned.values, self._element), tape.make(numbers, FLOAT32_BYTES)
        sizes, element = tuple(each.values for each in given), self._element
        expands = 0 if is_sdpa or sizes[1] == width else width

        def backward(_: Value) -> Gradients:
            made = [tape.make(each, element) for each in sizes]
            scratch = [
                tape.make(width + numbers, FLOAT32_BYTES),
                *(tape.make(expands, element) for _ in "kv" if expands),
            ]
            tape.free(*scratch)
            return made

        tape.record(out, given, backward, out, sums, *reversed(given), *masks)
        tape.free(sums, *masks, *given, *repeated)
        result = _whole(self._linear(tape, out, "o_proj"))
        tape.free(out, turned, turned_keys, values)
        return result

    def _heads(self, tape: Tape, normed: Value, name: str, *, copies: bool) -> Value:
        """Return queries, keys or values, normalised if the model does so; with `copies` their gradient is copied."""
        made = _whole(self._linear(tape, normed, name))
        if copies:
            tape.record(made, (made,), lambda gradient: (tape.like(gradient),))
        if self._kind.qk_norm and name != "v_proj":
            before, made = made, self.norm(tape, made, int(self._kind.head_dim))
            tape.free(before)
        return made

    def _mlp(self, tape: Tape, normed: Value) -> Value | None:
        gate = _whole(self._linear(tape, normed, "gate_proj"))
        active = tape.mapped(gate, saves=True)
        tape.free(gate)
        up = _whole(self._linear(tape, normed, "up_proj"))
        if self._ends is not None and self._in_4_bits and "down_proj" not in self._adapted:
            # A frozen weight of 4 bits saves nothing that checkpointing sees.
            self._ends.enter(tape.record(None, (active, up), tape.both_gradients, active, up), self._ends.of_last)
            tape.free(active, up)
            return None
        product = tape.product(active, up)
        tape.free(active, up)
        result = self._linear(tape, product, "down_proj", ends=self._ends)
        tape.free(product)
        return result

    def norm(self, tape: Tape, value: Value, width: int) -> Value:
        """Run a norm over `width` values, whose weight may be trained."""
        return tape.norm(value, width, self._keep if self._trains else None)

    # ---- linear layers -----------------------------------------------------------------------------------------------

    def _linear(self, tape: Tape, value: Value, name: str, *, ends: Ends | None = None) -> Value | None:
        """Run a linear layer with its adapter; with `ends` up to the last tensor that it saves."""
        part, is_adapted = self._parts[name], name in self._adapted
        if self._in_4_bits:
            base: Value | None = self._product_of_4_bits(tape, value, part)
        else:
            base = self._product(tape, value, part, None if is_adapted else ends)
        if base is None or not is_adapted:
            return base
        if ends is not None:
            ends.enter(base.node, ends.of_result)
        return self._with_adapter(tape, value, base, part, ends)

    def _product(self, tape: Tape, value: Value, part: Projection, ends: Ends | None) -> Value | None:
        """Run the product with a weight; `addmm` makes the gradient of the input first, `mm` that of the weight."""
        ins, weight, element, is_cast = value.values, int(part.weights), self._element, self._weight != self._element
        trains, has_bias = self._trains, bool(part.has_bias)
        # What autocast keeps to its end, and copies that a forward leaves, are not the layer's own.
        is_own = is_cast and (self._ends is not None or not (trains or tape.records))
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

    def _product_of_4_bits(self, tape: Tape, value: Value, part: Projection) -> Value:
        """Run the product with a weight of 4 bits, which is widened for many rows; peft copies the result."""
        weight = int(part.weights)
        is_widened = widened_bytes(self._spec, weight, self._positions, autocast=self._autocast)
        scratch = self._widened(tape, weight, scales=2) if is_widened else []
        out = tape.make(self._positions * int(part.out_features), self._element)
        tape.free(*scratch)
        tape.record(out, (value,), lambda _: (self._through_4_bits(tape, part),))
        if part.name in self._adapted:
            before, out = out, tape.copy(out)
            tape.free(before)
        return out

    def _widened(self, tape: Tape, values: int, *, scales: int) -> list[Value]:
        """Return the scales of a weight of 4 bits in float32, of which a second tensor is shifted, and the weight."""
        count = scales if self._spec.bnb_4bit_use_double_quant else 0
        made = [tape.make(-(-values // NF4_BLOCK), FLOAT32_BYTES) for _ in range(count)]
        return [*reversed(made), tape.make(values, self._element)]

    def _through_4_bits(self, tape: Tape, part: Projection) -> Value:
        """Return the gradient of the input of a product with a weight of 4 bits."""
        *scales, wide = self._widened(tape, int(part.weights), scales=1)
        tape.free(*scales)
        found = tape.make(self._positions * int(part.in_features), self._element)
        tape.free(wide)
        return found

    def _with_adapter(self, tape: Tape, value: Value, base: Value, part: Projection, ends: Ends | None) -> Value | None:
        """Run an adapter, and add its result to that of the layer, which goes."""
        leaves_type = self._in_4_bits and self._autocast
        given = tape.same(value) if leaves_type else tape.cast(value, self._adapter)
        dropped = self._dropped(tape, given)
        narrow = tape.cast(dropped, self._low)
        first = tape.make(self._positions * int(lora_rank(self._spec)), self._low)
        _record_matrix(tape, first, narrow)
        tape.free(narrow, dropped)
        if ends is not None:
            ends.enter(_record_matrix(tape, None, first), ends.of_last)
            tape.free(first, given, base)
            return None
        second = tape.make(self._positions * int(part.out_features), self._low)
        _record_matrix(tape, second, first)
        tape.free(first)
        scaled = tape.mapped(second, saves=False)
        tape.free(second)
        if self._in_4_bits:
            narrow = tape.cast(scaled, base.element)
            result = tape.add(base, narrow)
            tape.free(scaled, base, narrow, given)
            return result
        added = tape.add(base, scaled)
        tape.free(scaled, base)
        result = tape.cast(added, base.element)
        tape.free(added, given)
        return result

    def _dropped(self, tape: Tape, value: Value) -> Value:
        """Return what dropout leaves of the input of an adapter; the mask has one byte of each value."""
        if not drops_inputs(self._spec):
            return tape.same(value)
        mask, out = tape.make(value.values, 1), tape.like(value)
        tape.record(out, (value,), lambda gradient: (tape.like(gradient),), mask)
        tape.free(mask)
        return out


def _record_matrix(tape: Tape, out: Value | None, given: Value) -> Node | None:
    """Record a product with a trained matrix of an adapter, of its type."""
    values, element = given.values, given.element
    return tape.record(out, (given,), lambda _: (tape.make_view(values, element),), given, always=True)


def _whole(value: Value | None) -> Value:
    assert value is not None, "the result of an operation that is not the last one of a layer"
    return value
