"""The passes of a decoder whose layers are replayed in stages: of every kind of layer, and shared by several GPUs."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from profiler.analytical.formulas.layers.decoder_layer import layer_input_bytes
from profiler.analytical.formulas.layers.layer_backward import norm_backward
from profiler.analytical.formulas.models.trained import trains_everything
from profiler.analytical.formulas.models.weights import autocast_more_bytes
from profiler.analytical.formulas.sizes.quantities import Blocks
from profiler.analytical.formulas.sizes.trial_keys import Batch, DecoderShape, TrialKeys
from profiler.analytical.replayed.layers import AfterLayer, Forward, KnownLayers, Saved, is_replayed, loop_blocks
from profiler.analytical.replayed.requests import NO_BLOCKS, Requests, blocks, minus, others, plus
from profiler.analytical.replayed.sharing import Alone
from profiler.analytical.timeline.training_pass import final_norm


@dataclass(frozen=True)
class Gradients:
    """What becomes of the gradients that a backward makes."""

    requests: Requests
    reduce: Callable[[Hashable], None]
    """What happens to those of some weights when all of them are there."""
    is_first: bool
    """Whether there are none yet."""
    leaves: bool = False
    """Whether they leave their weights as they are made."""
    buffers: bool = False
    """Whether autograd adds up those of several rows before it adds them to earlier ones."""
    is_last: bool = True
    """Whether these are the last of those rows."""

    def group_of(self, weights: Hashable) -> Hashable | None:
        """Return where those of some weights stay; None if they are added to others, or leave."""
        if self.is_first:
            return None if self.leaves else ("gradients", weights)
        return ("buffer", weights) if self.buffers and not self.requests.has(("buffer", weights)) else None

    def add(self, weights: Hashable, made: Blocks) -> None:
        """Make those of some weights."""
        group = self.group_of(weights)
        if group is not None:
            self.requests.set(group, made)
        elif not self.is_first:
            self.requests.pass_through("new gradients", [made, NO_BLOCKS])
        self.end(weights)

    def end(self, weights: Hashable) -> None:
        """Let those of some weights be all there."""
        if self.is_last:
            self.requests.drop(("buffer", weights))
            self.reduce(weights)


class StagedDecoder:
    """Layers and last norm; what backward needs of some rows is in groups by their name and the layer's number."""

    def __init__(
        self,
        requests: Requests,
        spec: TrialKeys,
        architecture: DecoderShape,
        layers: Sequence[DecoderShape],
        sharing: Alone,
    ) -> None:
        """Prepare it; `spec` is itemised, and `layers` has the kind of each layer."""
        self._requests, self._spec, self._architecture, self._layers = requests, spec, architecture, layers
        self._known, self._sharing = KnownLayers(spec, architecture), sharing
        self._trains_all, self._checkpoints = trains_everything(spec), bool(spec.gradient_checkpointing)

    def score(self, batch: Batch, *, adapted: bool, after: AfterLayer) -> None:
        """Run a forward that keeps nothing; `after` what precedes its attention."""
        requests = self._requests
        for number, kind in enumerate(self._layers):
            if is_replayed(self._layers, number):
                self._sharing.enter(number)
                forward = self._known.forward_of(kind, batch, adapted=adapted)
                requests.pass_through("work", forward.before)
                after(number)
                forward.attend(requests)
                self._sharing.leave(number)

    def forward(self, batch: Batch, rows: Hashable, *, after: AfterLayer) -> None:
        """Run a forward with gradients, and keep of these rows what backward needs."""
        requests, spec = self._requests, self._spec
        one_copy = others(blocks(autocast_more_bytes(spec, self._architecture, in_layer=True)), len(self._layers))
        for number, kind in enumerate(self._layers):
            self._sharing.enter(number)
            forward = self._known.forward_of(kind, batch, adapted=True)
            if self._checkpoints:
                requests.set((rows, number), self._known.input_of(kind, batch, number))
                loop = loop_blocks(spec, kind, batch)

                def less(stage: Blocks, loop: Blocks = loop) -> Blocks:
                    return plus(minus(stage, loop), one_copy)

                if is_replayed(self._layers, number):
                    requests.pass_through("work", map(less, forward.before))
                    forward.attend(requests, less=less)
            else:
                self._saving_layer(forward, self._known.saved_of(kind, batch, number), (rows, number))
            after(number)
            self._sharing.leave(number)
        self._sharing.enter_head()
        requests.set((rows, "norm"), blocks(final_norm(spec, self._architecture, batch).size))

    def _saving_layer(self, forward: Forward, saved: Saved, group: tuple[Hashable, int]) -> None:
        """Run the forward of a layer that keeps what its backward needs."""
        requests, until = self._requests, saved.until_attention
        later = plus(minus(saved.all, until), saved.inputs)
        requests.pass_through("work", [minus(stage, until) for stage in forward.before])
        requests.set(group, until)
        requests.pass_through("work", [minus(stage, until) for stage in forward.attention])
        requests.pass_through((*group, "scores") if saved.scores else "scores", saved.scores or forward.scores)
        requests.pass_through("work", [minus(stage, later) for stage in forward.after])
        requests.drop("scores")
        requests.set(group, saved.all)

    def backward(self, batch: Batch, rows: Hashable, gradients: Gradients, *, after: AfterLayer) -> None:
        """Run the backward of these rows; `after` a layer but for its first norm."""
        requests, spec, architecture = self._requests, self._spec, self._architecture
        stream = blocks(layer_input_bytes(spec, architecture, batch))
        requests.set("work", plus(stream, blocks(norm_backward(spec, architecture, batch).size)))
        requests.drop((rows, "norm"))
        for number in reversed(range(len(self._layers))):
            self._sharing.enter_backward(number)
            self._layer_backward(batch, rows, number)
            after(number)
            backward = self._known.backward_of(self._layers[number], batch)
            requests.pass_through("work", backward.norm)
            gradients.add(number, backward.gradients)
            self._sharing.leave_backward(number)

    def _layer_backward(self, batch: Batch, rows: Hashable, number: int) -> None:
        """Run the backward of a layer, but for its first norm; what it saved goes."""
        requests, kind = self._requests, self._layers[number]
        if self._checkpoints and not self._trains_all and not is_replayed(self._layers, number):
            requests.drop((rows, number))
            return
        backward, saved = self._known.backward_of(kind, batch), self._known.saved_of(kind, batch, number)
        kept = NO_BLOCKS if self._checkpoints else requests.sizes((rows, number))
        scores = (rows, number, "scores")
        if backward.recomputed is not None:
            requests.pass_through("work", backward.recomputed.before)
            backward.recomputed.attend(requests, kept=scores)
        requests.pass_through("work", [minus(stage, kept) for stage in backward.mlp])
        if not self._checkpoints:
            left = {size: min(count, saved.until_attention.get(size, 0)) for size, count in kept.items()}
            requests.set((rows, number), {size: count for size, count in left.items() if count})
            kept = requests.sizes((rows, number))
        requests.pass_through("work", [minus(stage, kept) for stage in backward.attention])
        requests.pass_through(scores, backward.scores if requests.has(scores) else ())
        requests.pass_through("work", [minus(stage, kept) for stage in backward.heads])
        requests.drop((rows, number))
