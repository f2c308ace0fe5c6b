"""A decoder layer operation by operation, in the order of the statements of transformers, peft and bitsandbytes.

The program is that of Llama's layers, and of those that differ from them in sizes and in a norm on queries and keys
(`is_known`). Each result has a block of its own, and lives as long as a name of the program or autograd needs it.
Copies and gradients of adapters, and what the kernels of sums need, are left out.

Source: `modeling_llama.py`, `modeling_qwen3.py` and `integrations/sdpa_attention.py` of transformers 5; `lora/layer.py`
and `lora/bnb.py` of peft 0.21; `autograd/_functions.py` of bitsandbytes 0.50; torch's `FunctionsManual.cpp`.
"""

from collections.abc import Callable

from profiler.analytical.formulas.layers.eager_attention import makes_scores, repeats_keys
from profiler.analytical.formulas.models.parameters import is_mixture, layers_of, query_width
from profiler.analytical.formulas.models.trained import (
    FLOAT32_BYTES,
    element_bytes,
    has_bfloat16_adapters,
    trains_everything,
)
from profiler.analytical.formulas.sizes.trial_keys import Batch, DecoderShape, TrialKeys, is_masked
from profiler.analytical.replayed.decoder.linear_layers import Ends, LinearLayers
from profiler.analytical.replayed.decoder.operations import Operations
from profiler.analytical.replayed.decoder.tape import Gradients, Value
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
        self._spec, self._kind, self._batch, self._positions = spec, kind, batch, int(batch.positions)
        self._linear = LinearLayers(spec, kind, batch, adapted=adapted, keep=keep)
        self._keep = keep if trains_everything(spec) else None
        self._weight = int(element_bytes(spec).weight)
        self._ends: Ends | None = None

    def forward(self, tape: Operations, stream: Value) -> Value:
        """Run the layer; return its output."""
        residual, result = self._run(tape, stream)
        out = tape.add(residual, _whole(result))
        tape.free(result, residual)
        return out

    def again(self, tape: Operations, stream: Value, gradient: Value) -> Ends:
        """Run the layer again for the gradient of its output, up to the last operation that saves a tensor.

        Then what it has goes (`_StopRecomputationError` in torch's `utils/checkpoint.py`). The input of the layer goes
        with the tensors that were saved first.
        """
        ends = self._ends = self._begin_backward(tape, gradient)
        self._linear.runs_again = True
        residual, result = self._run(tape, stream)
        ends.enter(residual.node)
        tape.free(result, residual)
        self._ends, self._linear.runs_again = None, False
        first = next(node for node in tape.nodes if node.saved)
        first.saved = (*first.saved, stream)
        return ends

    def _run(self, tape: Operations, stream: Value) -> tuple[Value, Value | None]:
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

    def _begin_backward(self, tape: Operations, gradient: Value) -> Ends:
        """Make what backward makes of the gradient of a layer's output before it computes the layer again."""
        values, ends = gradient.values, Ends(of_output=gradient)
        if self._linear.element != gradient.element:
            ends.of_result = tape.make(values, self._linear.element)
        if "down_proj" not in self._linear.adapted:
            ends.of_last = (
                self._linear.through_4_bits(tape, self._linear.parts["down_proj"]) if self._linear.in_4_bits else None
            )
        elif self._linear.low == self._linear.element:
            ends.of_last = tape.make(values, self._linear.low)
        else:
            wide = tape.make(values, self._linear.low)
            ends.of_result = tape.like(gradient)
            ends.of_last = tape.like(wide)
            tape.free(wide)
        return ends

    # ---- attention and MLP -------------------------------------------------------------------------------------------

    def _attention(self, tape: Operations, normed: Value) -> Value:
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
        given = [tape.cast(each, self._linear.element) for each in (turned, *repeated)]
        is_square = is_sdpa and bool(is_masked(kind, batch))
        masks = [tape.make(int(batch.rows) * int(batch.width) ** 2, self._linear.element)] if is_square else []
        numbers = self._positions * int(kind.num_attention_heads)
        out, sums = tape.make(turned.values, self._linear.element), tape.make(numbers, FLOAT32_BYTES)
        sizes, element = tuple(each.values for each in given), self._linear.element
        expands = 0 if is_sdpa or sizes[1] == width else width

        def backward(_: Value) -> Gradients:
            made = [tape.make(each, element) for each in sizes]
            summed = [width + numbers] if is_sdpa else [numbers, width]
            scratch = [tape.make(each, FLOAT32_BYTES) for each in summed]
            scratch += [tape.make(expands, element) for _ in "kv" if expands]
            tape.free(*scratch)
            return made

        tape.record(out, given, backward, out, sums, *reversed(given), *masks)
        tape.free(sums, *masks, *given, *repeated)
        result = _whole(self._linear.run(tape, out, "o_proj"))
        tape.free(out, turned, turned_keys, values)
        return result

    def _heads(self, tape: Operations, normed: Value, name: str, *, copies: bool) -> Value:
        """Return queries, keys or values, normalised if the model does so; with `copies` their gradient is copied."""
        made = _whole(self._linear.run(tape, normed, name))
        if copies:
            tape.record(made, (made,), lambda gradient: (tape.like(gradient),))
        if self._kind.qk_norm and name != "v_proj":
            before, made = made, self.norm(tape, made, int(self._kind.head_dim))
            tape.free(before)
        return made

    def _mlp(self, tape: Operations, normed: Value) -> Value | None:
        gate = _whole(self._linear.run(tape, normed, "gate_proj"))
        active = tape.mapped(gate, saves=True)
        tape.free(gate)
        up = _whole(self._linear.run(tape, normed, "up_proj"))
        if self._ends is not None and self._linear.in_4_bits and "down_proj" not in self._linear.adapted:
            # A frozen weight of 4 bits saves nothing that checkpointing sees.
            self._ends.enter(tape.record(None, (active, up), tape.both_gradients, active, up), self._ends.of_last)
            tape.free(active, up)
            return None
        product = tape.product(active, up)
        tape.free(active, up)
        result = self._linear.run(tape, product, "down_proj", ends=self._ends)
        tape.free(product)
        return result

    def norm(self, tape: Operations, value: Value, width: int) -> Value:
        """Run a norm over `width` values, whose weight may be trained."""
        return tape.norm(value, width, self._keep)


def _whole(value: Value | None) -> Value:
    assert value is not None, "the result of an operation that is not the last one of a layer"
    return value
