"""The passes of a decoder whose layers are replayed operation by operation (`is_known`)."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from profiler.analytical.formulas.models.trained import element_bytes, trains_everything
from profiler.analytical.formulas.sizes.trial_keys import Batch, DecoderShape, TrialKeys
from profiler.analytical.replayed.decoder.dense_layer import DenseLayer, is_known
from profiler.analytical.replayed.decoder.operations import Operations
from profiler.analytical.replayed.decoder.staged_decoder import Gradients
from profiler.analytical.replayed.decoder.tape import Node, Tape, Value
from profiler.analytical.replayed.layers import AfterLayer, is_replayed
from profiler.analytical.replayed.requests import Repeatable, Requests
from profiler.domain.trials.trial import DistributedType

_Layer = tuple[Tape, Node | None, Node | None]
"""Of a layer that ran with gradients: its tape, the operation of its output, and the leaf that stands for its input."""


@dataclass(kw_only=True)
class _Pass:
    """What a forward leaves for its backward."""

    inputs: list[Value] = field(default_factory=list)
    """Of each layer, under checkpointing."""
    layers: list[_Layer] = field(default_factory=list)
    """Of all layers that keep more than that, and of the last norm."""


@dataclass(frozen=True)
class _Known:
    """What a layer requested and freed, for tensors that it was given."""

    outer: Sequence[int]
    """The blocks of those tensors."""
    repeatable: Repeatable
    result: Value | None
    kept: Sequence[Value]
    """Gradients of weights that stay."""


class DenseDecoder:
    """Embedding, layers and last norm; of rows whose forward ran it keeps what backward needs."""

    def __init__(self, requests: Requests, spec: TrialKeys, layers: Sequence[DecoderShape]) -> None:
        """Prepare it; `spec` is itemised, and `layers` has the kind of each layer."""
        self._requests, self._spec, self._layers = requests, spec, layers
        self._trains_all, self._checkpoints = trains_everything(spec), bool(spec.gradient_checkpointing)
        self._passes: dict[Hashable, _Pass] = {}
        self._programs: dict[Hashable, DenseLayer] = {}
        self._known: dict[Hashable, _Known] = {}
        self._kept: list[Value] | None = None

    def knows(self, batch: Batch) -> bool:
        """Return whether all layers are replayed operation by operation, of one GPU only."""
        kinds = {id(kind): kind for kind in self._layers}.values()
        is_alone = self._spec.distributed_type is DistributedType.NO
        return is_alone and all(is_known(self._spec, kind, batch) for kind in kinds)

    def score(self, batch: Batch, *, adapted: bool, after: AfterLayer) -> None:
        """Run a forward that keeps nothing; its layers repeat the first and the last ones."""
        tape = self._tape(records=False)
        embedded = self._embedded(tape, batch)
        stream = tape.same(embedded)
        for number in range(len(self._layers)):
            if is_replayed(self._layers, number):
                stream = self._without_gradient(number, batch, stream, adapted=adapted)
                after(number)
        normed = self._norm(tape, batch, stream)
        tape.free(stream, embedded)
        self._give("work", normed)

    def forward(self, batch: Batch, rows: Hashable, *, after: AfterLayer) -> None:
        """Run a forward with gradients, and keep of these rows what backward needs."""
        tape, found = self._tape(records=False), _Pass()
        embedded = self._embedded(tape, batch)
        stream = tape.same(embedded)
        for number in range(len(self._layers)):
            if self._checkpoints:
                found.inputs.append(tape.same(stream))
                stream = self._without_gradient(number, batch, stream, adapted=True)
            else:
                stream = self._with_gradient(number, batch, stream, found)
            after(number)
        last = self._tape(records=True)
        leaf = last.leaf(stream)
        normed = self._norm(last, batch, stream)
        found.layers.append((last, normed.node, leaf))
        tape.free(stream, embedded)
        self._give("work", normed)
        self._passes[rows] = found

    def backward(self, batch: Batch, rows: Hashable, gradients: Gradients, *, after: AfterLayer) -> None:
        """Run the backward of these rows; `after` each layer."""
        self._requests.drop("work")
        self._kept = None
        found, tape = self._passes.pop(rows), self._tape(records=False)
        gradient = self._through(found.layers.pop(), tape.make(*self._stream_of(batch)))
        for number in reversed(range(len(self._layers))):
            group = gradients.group_of(number)
            self._kept = [] if group is not None else None
            if self._checkpoints:
                stream = found.inputs.pop()
                # Without trained weights a layer leaves nothing, so others repeat it.
                if gradient is not None and (self._trains_all or is_replayed(self._layers, number)):
                    gradient = self._again(number, batch, stream, gradient)
                else:
                    tape.free(stream)
            else:
                gradient = self._through(found.layers.pop(), gradient)
            for each in self._kept or ():
                self._give(group, each)
            after(number)
            gradients.end(number)
        tape.free(gradient)

    def _without_gradient(self, number: int, batch: Batch, stream: Value, *, adapted: bool) -> Value:
        """Run a layer that saves nothing; its input goes when its output is there."""
        layer, tape = self._layer(number, batch, adapted=adapted), self._tape(records=False)
        found = self._once(("forward", layer), (stream,), lambda: layer.forward(tape, stream))
        tape.free(stream)
        assert found is not None, "a whole forward"
        return found

    def _with_gradient(self, number: int, batch: Batch, stream: Value, found: _Pass) -> Value:
        """Run a layer that saves what its backward needs."""
        tape = self._tape(records=True)
        # Embeddings have a gradient if they are trained.
        has_gradient = number or self._trains_all or "embed_tokens" in (self._spec.lora_target_modules or ())
        leaf = tape.leaf(stream) if has_gradient else None
        out = self._layer(number, batch).forward(tape, stream)
        found.layers.append((tape, out.node, leaf))
        tape.free(stream)
        return out

    def _again(self, number: int, batch: Batch, stream: Value, gradient: Value) -> Value | None:
        """Run a layer again, and its backward; return the gradient of its input."""
        layer = self._layer(number, batch)

        def run() -> Value | None:
            tape = self._tape(records=True)
            leaf = tape.leaf(stream)
            layer.again(tape, stream, gradient).backward(tape)
            return leaf.gradient if leaf is not None else None

        return self._once(("again", layer, self._kept is None), (stream, gradient), run)

    def _once(self, key: Hashable, given: Sequence[Value], run: Callable[[], Value | None]) -> Value | None:
        """Run something, or repeat what it requested and freed for other tensors of the same sizes."""
        if key not in self._known:
            position = self._requests.position()
            result = run()
            outer, kept = [each.block for each in given], tuple(self._kept or ())
            self._known[key] = _Known(outer, self._requests.since(position), result, kept)
            return result
        known = self._known[key]
        in_place = {old: each.block for old, each in zip(known.outer, given, strict=True)}
        shift = self._requests.repeat(known.repeatable, in_place)
        if self._kept is not None:
            self._kept.extend(Value(each.block + shift, each.values, each.element) for each in known.kept)
        if known.result is None:
            return None
        if known.result.block in in_place:
            return next(each for each in given if each.block == in_place[known.result.block])
        return Value(known.result.block + shift, known.result.values, known.result.element)

    @staticmethod
    def _through(layer: _Layer, gradient: Value | None) -> Value | None:
        """Run the backward of what a tape has; return the gradient of its leaf."""
        tape, node, leaf = layer
        if node is None or gradient is None:
            tape.free(gradient)
            return None
        node.gradient = gradient
        tape.run_backward()
        return leaf.gradient if leaf is not None else None

    def _tape(self, *, records: bool) -> Operations:
        return Operations(requests=self._requests, records=records)

    def _stream_of(self, batch: Batch) -> tuple[int, int]:
        """Return the values of the residual stream, and the bytes of one."""
        return int(batch.positions) * int(self._layers[0].hidden_size), int(element_bytes(self._spec).stream)

    def _embedded(self, tape: Operations, batch: Batch) -> Value:
        return tape.make(*self._stream_of(batch))

    def _norm(self, tape: Operations, batch: Batch, stream: Value) -> Value:
        """Run the norm after the last layer; the gradient of its weight is left to the whole model."""
        return self._layer(len(self._layers) - 1, batch).norm(tape, stream, int(self._layers[0].hidden_size))

    def _layer(self, number: int, batch: Batch, *, adapted: bool = True) -> DenseLayer:
        """Return the program of a layer, of which those of one kind have the same."""
        kind = self._layers[number]
        key = id(kind), batch, adapted
        if key not in self._programs:
            self._programs[key] = DenseLayer(self._spec, kind, batch, adapted=adapted, keep=self._keep)
        return self._programs[key]

    def _give(self, group: Hashable, value: Value) -> None:
        """Let a tensor be of a group: what the LM head works with, or gradients that stay."""
        self._requests.adopt(group, value.values * value.element, value.block)

    def _keep(self, gradient: Value) -> None:
        """Keep the gradient of a weight, or add it to what is there."""
        if self._kept is None:
            self._requests.free((gradient.block,))
        else:
            self._kept.append(gradient)
