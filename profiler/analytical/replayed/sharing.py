"""Requests of loading a model, and of sharing it with other GPUs: by DDP, or by FSDP 2 unit by unit."""

from collections.abc import Hashable, Iterable, Sequence

from profiler.allocator.model.card_memory import AllocatorStats
from profiler.analytical.formulas.models.parameters import layer_lora_tensors, layer_tensors, projections
from profiler.analytical.formulas.models.trained import (
    BFLOAT16_BYTES,
    FLOAT32_BYTES,
    all_gradients,
    element_bytes,
    lora_rank,
    trains_everything,
)
from profiler.analytical.formulas.models.weights import adapters, keeps_reference_model, weights
from profiler.analytical.formulas.sizes.quantities import Blocks, whole_units
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.trial_keys import DecoderShape, TrialKeys, layer_kinds
from profiler.analytical.optimizers import optimizer_scratch, optimizer_state
from profiler.analytical.replayed.gathering import Streams
from profiler.analytical.replayed.generation import load_models
from profiler.analytical.replayed.layers import all_layers
from profiler.analytical.replayed.requests import (
    NO_BLOCKS,
    Requests,
    blocks,
    counted,
    minus,
    others,
    packed,
    per_layer,
    stages,
)
from profiler.analytical.timeline.instants import state
from profiler.analytical.timeline.sharding.fsdp import Fsdp
from profiler.analytical.timeline.sharding.sharding import BROADCAST_BYTES
from profiler.analytical.timeline.step_instants import step_scratch
from profiler.domain.memory import MIB
from profiler.domain.trials.trial import Tuning


class Alone:
    """What a GPU requests of a model that it has whole. Another way to have it replaces what differs."""

    gathers_reference = False
    """Whether a reference model requests more than the policy does when it scores."""
    parts_gradients = False
    """Whether gradients leave their weights as they are made, so that none are there when a micro-batch begins."""
    is_whole_first = True
    """Whether the first step has several micro-batches: they decide where its states come to be."""
    most_micro_batches, scored_batches = 2, 1
    """Micro-batches that are replayed, and batches that are scored after a rollout: later ones repeat them."""

    def __init__(self, requests: Requests, spec: TrialKeys, architecture: DecoderShape) -> None:
        """Prepare it; `spec` is itemised."""
        self._requests, self._spec, self._architecture = requests, spec, architecture
        self._streams = Streams(requests)

    def load(self) -> None:
        """Request the models."""
        load_models(self._requests, self._spec, self._architecture)

    def share(self) -> None:
        """Request what the trainer makes of a model before the first step, once the cache has been emptied."""

    def begin_pass(self, *, reduces: bool) -> None:
        """Begin a micro-batch; `reduces` if the GPUs exchange its gradients."""

    def begin(self, *, adapted: bool = True, trains: bool = False) -> None:
        """Begin a forward, without `adapted` that of a reference; `trains` if it has a backward."""

    def generate(self, *, begins: bool) -> None:
        """Request what all forwards of a rollout need, or free it."""

    def enter(self, number: int) -> None:
        """Request what a layer needs to run."""

    def leave(self, number: int) -> None:
        """Free what only that layer needed."""

    def enter_head(self) -> None:
        """Request what norm and LM head need to run."""

    def end(self) -> None:
        """End a forward."""

    def enter_backward(self, number: int) -> None:
        """Request what a layer needs for its backward."""

    def leave_backward(self, number: int) -> None:
        """Free what only that layer needed."""

    def reduce(self, weights: Hashable) -> None:
        """Exchange the gradients of some weights, ``("gradients", weights)``; those of the embedding are the last."""

    def keep_adapters(self, gradients: Blocks) -> None:
        """Keep the gradients of adapters at the end of a backward that makes them."""
        self._requests.set(("gradients", "adapters"), gradients)

    def empty_cache(self) -> None:
        """Give back all segments without blocks in use."""
        self._streams.empty_cache(str(self._spec.alloc_conf))

    def update(self) -> None:
        """Run the optimizer."""
        self._requests.set("state", blocks(state(self._spec, self._architecture).size))
        self._requests.pass_through("work", [*stages(step_scratch(self._spec, self._architecture).size), NO_BLOCKS])

    def counters(self, alloc_conf: str) -> AllocatorStats:
        """Return torch's counters at the end, on a card of unlimited memory."""
        return self._streams.counters(alloc_conf)


_SENT_BYTES, _BUCKET_BYTES = (BROADCAST_BYTES, BROADCAST_BYTES), (MIB, 25 * MIB)
"""Of the first and of each later tensor: `_DEFAULT_FIRST_BUCKET_BYTES` and `_DEFAULT_BUCKET_CAP_MB` of torch's DDP."""
_AT_ONCE = 2
"""`max_in_flight` of `broadcast_coalesced` in torch's `comm.cpp`."""


def filled(sizes: Iterable[int], first_bytes: int, bytes_each: int) -> list[list[int]]:
    """Return tensors in parts that are full once they have `bytes_each`, the first once it has `first_bytes`.

    By hand, tensors of 3, 5, 4 and 9 B in parts of 4 and 8 B: 3 + 5, 4 + 9.

    Source: `compute_bucket_assignment_by_size` in torch's `csrc/distributed/c10d/reducer.cpp`.
    """
    parts: list[list[int]] = []
    for size in sizes:
        if not parts or sum(parts[-1]) >= (first_bytes if len(parts) == 1 else bytes_each):
            parts.append([])
        parts[-1].append(size)
    return parts


class Replicas(Alone):
    """DDP: copies of the weights while it sends them, and its buckets for gradients.

    With checkpointing, without adapters, one bucket has all gradients until the forward after they were first reduced.
    Otherwise transformers lets DDP look for unused parameters, and its buckets stay.

    Source: `_BucketCapacityConfig` in torch's `nn/parallel/distributed.py`, `Reducer::rebuild_buckets`, and
    `create_accelerator_and_postprocess` in transformers' `trainer.py`.
    """

    is_whole_first = False

    def __init__(self, requests: Requests, spec: TrialKeys, architecture: DecoderShape) -> None:
        """Prepare them; `spec` is itemised."""
        super().__init__(requests, spec, architecture)
        self._layers = len(all_layers(architecture))
        self._rebuilds, self._has_reduced = trains_everything(spec) and bool(spec.gradient_checkpointing), False
        of_weights = self._in_order(blocks(weights(spec, architecture).size))
        packed_bytes = self._packed_bytes() if spec.tuning is Tuning.QLORA else frozenset()
        self._models = [
            [size for size in of_weights if size not in packed_bytes],
            [size for size in of_weights if size in packed_bytes],
            self._in_order(blocks(adapters(spec, architecture).size)),
        ]
        self._gradients = self._in_order(blocks(all_gradients(spec, architecture).size))

    def share(self) -> None:
        """Send the model of the first process, two tensors at once, and make the first buckets.

        A part has parameters of one type, and parts are sent in the order of their first parameters: adapters, and
        matrices in 4 bits, after the first part that has parameters of layers.
        """
        requests, (parts, *later) = self._requests, [filled(each, *_SENT_BYTES) for each in self._models]
        first = next((number for number, part in enumerate(parts) if len(part) > 1), 0) + 1
        parts[first:first] = [part for each in later for part in each]
        for number, part in enumerate(parts):
            requests.drop(("sent", number - _AT_ONCE))
            requests.set(("sent", number), {sum(part): 1} if len(part) > 1 else NO_BLOCKS)
        requests.drop(*(("sent", number) for number in range(len(parts))))
        self._make_buckets([self._gradients] if self._rebuilds else filled(self._gradients, *_BUCKET_BYTES))

    def begin_pass(self, *, reduces: bool) -> None:
        """Make the usual buckets once the gradients of a pass have been reduced."""
        if self._rebuilds and self._has_reduced:
            self._rebuilds = False
            self._requests.drop("buckets")
            self._make_buckets(filled(reversed(self._gradients), *_BUCKET_BYTES))
        self._has_reduced = self._has_reduced or reduces

    def _packed_bytes(self) -> frozenset[int]:
        """Return the sizes of matrices in 4 bits."""
        spec, kinds = self._spec, layer_kinds(self._architecture)
        halves = (whole_units(part.weights, 2) for kind in kinds for part in projections(kind))
        return frozenset(int(block_of(spec)(half)) for half in halves)

    def _make_buckets(self, gradients: Iterable[list[int]]) -> None:
        self._requests.set("buckets", counted(map(sum, gradients)))

    def _in_order(self, whole: Blocks) -> list[int]:
        """Return the tensors of a model: the embedding, then those of each layer, then the others."""
        each, rest = per_layer(whole, self._layers), others(whole, self._layers)
        first = {max(rest): 1} if rest else NO_BLOCKS
        parts = (first, *[each] * self._layers, minus(rest, first))
        return [size for part in parts for size, count in part.items() for _ in range(count)]


_EMBEDDING, _TAIL = "embedding", "tail"
"""The units outside of layers: an embedding of its own; the final norm and the LM head, with a tied embedding."""


class Units(Alone):
    """FSDP 2: shards, and the units that are gathered and copied out.

    Buffers of gathered units are on a stream of their own, and reduced gradients on a third.

    Source: `foreach_all_gather`, `foreach_all_gather_copy_out` and `foreach_reduce` in torch's `_fsdp_collectives.py`,
    `FSDPParam.init_dtype_attrs`, and `timeline/sharding/fsdp.py` and `gathered.py`, which count the largest of it.
    """

    is_whole_first = False

    def __init__(self, requests: Requests, spec: TrialKeys, architecture: DecoderShape, *, shared: TrialKeys) -> None:
        """Prepare them; `spec` is itemised and as one GPU computes it, `shared` the trial of all GPUs."""
        super().__init__(requests, spec, architecture)
        self._gathers, self._reductions = Requests(), Requests()
        self._streams = Streams(requests, self._gathers, self._reductions)
        self._fsdp, self._gpus = Fsdp(shared, architecture), int(shared.num_processes)
        self._stays, self._by_tensors = not shared.fsdp_reshard_after_forward, shared.fsdp_cpu_ram_efficient_loading
        self._trains_all, self._loaded_bytes = trains_everything(spec), int(element_bytes(shared).weight)
        self._units = self._tensors_of_units()
        self._everything = [size for unit in self._units.values() for size in unit]
        self.gathers_reference = bool(keeps_reference_model(shared))
        self._is_reference, self._reduces = False, True
        self._there: set[Hashable] = set()
        self._last: Hashable = None
        """The last unit that was copied out in this forward, whose buffer is still there."""

    def _tensors_of_units(self) -> dict[Hashable, list[int]]:
        """Return the numbers of values of the tensors of each unit, in the order in which they are sharded."""
        architecture, hidden = self._architecture, int(self._architecture.hidden_size)
        known: dict[int, list[int]] = {}
        units: dict[Hashable, list[int]] = {}
        for number, kind in enumerate(all_layers(architecture)):
            units[number] = known.setdefault(id(kind), self._tensors_of_layer(kind))
        table = hidden * int(architecture.vocab_size)
        if not architecture.tie_word_embeddings:
            units[_EMBEDDING] = [table]
        units[_TAIL] = [hidden, hidden * int(architecture.scores) if architecture.scores else table]
        return units

    def _tensors_of_layer(self, kind: DecoderShape) -> list[int]:
        found = [int(group.elements) for group in layer_tensors(kind) for _ in range(int(group.copies))]
        if self._trains_all:
            return found
        lora = layer_lora_tensors(kind, lora_rank(self._spec), self._spec.lora_target_modules or ())
        layers, copies = int(kind.num_hidden_layers), 2 if self._spec.ref_adapter else 1
        return found + [int(group.elements) for group in lora for _ in range(copies * int(group.copies) // layers)]

    def load(self) -> None:
        """Move a reference model, which is one unit. The policy stays on the host."""
        if self.gathers_reference:
            self._shard("reference", self._everything, self._loaded_bytes)

    def share(self) -> None:
        """Move the policy unit by unit, or tensor by tensor; trained weights are float32."""
        element = FLOAT32_BYTES if self._trains_all else self._loaded_bytes
        for key, unit in self._units.items():
            for number, part in enumerate([[size] for size in unit] if self._by_tensors else [unit]):
                self._shard((key, number), part, element)
        if self._by_tensors and _EMBEDDING not in self._units:
            self._shard("tied head", self._units[_TAIL][1:], element)
            self._requests.drop(("shards", "tied head"))

    def _shard(self, name: Hashable, tensors: Sequence[int], element: int) -> None:
        """Move whole tensors, make their shards, and free them."""
        self._requests.set("whole", packed(counted(size * element for size in tensors)))
        shards = (whole_units(size, self._gpus) * element for size in tensors)
        self._requests.set(("shards", name), packed(counted(map(int, shards))))
        self._requests.drop("whole")

    def begin_pass(self, *, reduces: bool) -> None:
        """Begin a micro-batch."""
        self._reduces = reduces

    def begin(self, *, adapted: bool = True, trains: bool = False) -> None:  # noqa: ARG002
        """Gather the embedding's unit, or a whole reference, which stays where units stay: it has no backward."""
        self._is_reference = self.gathers_reference and not adapted
        if self._is_reference:
            if not self._requests.has(("unit", "reference")):
                self._gather("reference", self._everything, is_wide=self._loaded_bytes != BFLOAT16_BYTES)
                self._copy_out("reference", self._everything)
            return
        first = _EMBEDDING if _EMBEDDING in self._units else _TAIL
        self._come(first)
        if first is _EMBEDDING and not self._stays:
            self._free(first)

    def enter(self, number: int) -> None:
        """Gather the layer; the buffer of the unit before it goes when it has been copied out."""
        if not self._is_reference:
            self._come(number)

    def leave(self, number: int) -> None:
        """Free the layer, unless it stays."""
        if not self._is_reference and not self._stays:
            self._free(number)

    def enter_head(self) -> None:
        """Gather norm and LM head, which stay until their backward."""
        if not self._is_reference:
            self._come(_TAIL)

    def end(self) -> None:
        """Free the last buffer, and a reference that does not stay."""
        if not self._is_reference:
            self._gathers.drop(("buffer", self._last))
            self._last = None
            return
        self._gathers.drop(("buffer", "reference"))
        if not self._stays:
            self._free("reference")

    def enter_backward(self, number: int) -> None:
        """Copy the layer out, and gather the next one, or an embedding of its own."""
        self._prefetch(number)
        if number not in self._there:
            self._copy_out(number, self._units[number])
            self._gathers.drop(("buffer", number))
        self._prefetch(number - 1 if number else _EMBEDDING)

    def leave_backward(self, number: int) -> None:
        """Free the layer."""
        self._free(number)

    def reduce(self, weights: Hashable) -> None:
        """Free the unit, and reduce its gradients; the input of the reduction stays until the next one.

        An LM head next to adapters stays, because it has no backward.
        """
        requests, reductions = self._requests, self._reductions
        is_last = weights == _EMBEDDING
        if is_last:
            self._gathers.drop(("buffer", _EMBEDDING))
        if is_last or weights == "head":
            self._free(_EMBEDDING if is_last and _EMBEDDING in self._units else _TAIL)
        made = sum(size * count for size, count in requests.sizes(("gradients", weights)).items())
        if self._reduces and made:
            shard = int(whole_units(made, self._gpus))
            requests.drop("input of a reduction")
            requests.set("input of a reduction", {made: 1})
            requests.drop(("gradients", weights))
            reductions.set("output", {shard: 1})
            reductions.set(("gradients", weights), {shard * FLOAT32_BYTES // BFLOAT16_BYTES: 1})
            reductions.drop("output")
        if is_last:
            requests.drop("input of a reduction")
            for unit in self._there - ({"reference"} if self._trains_all else {"reference", _TAIL}):
                self._free(unit)

    def update(self) -> None:
        """Run the optimizer over shards, and drop those of the gradients."""
        spec, tensors, block = self._spec, self._fsdp.tensors, block_of(self._spec)
        states = optimizer_state(spec.optim, tensors, FLOAT32_BYTES, block)
        scratch = optimizer_scratch(spec.optim, tensors, FLOAT32_BYTES, block, weight_decay=spec.weight_decay)
        self._requests.set("state", blocks(states.size))
        self._requests.pass_through("work", [*stages(scratch.size), NO_BLOCKS])
        self._reductions.drop(*(("gradients", weights) for weights in (*self._units, "head", _EMBEDDING)))

    def _come(self, unit: Hashable) -> None:
        if unit in self._there:
            return
        self._prefetch(unit)
        self._copy_out(unit, self._units[unit])
        self._gathers.drop(("buffer", self._last))
        self._last = unit

    def _prefetch(self, unit: Hashable) -> None:
        if unit in self._units and unit not in self._there and not self._gathers.has(("buffer", unit)):
            self._gather(unit, self._units[unit], is_wide=self._trains_all or self._loaded_bytes != BFLOAT16_BYTES)

    def _gather(self, name: Hashable, tensors: Sequence[int], *, is_wide: bool) -> None:
        """Gather tensors to a buffer; what is not in bfloat16 is cast before."""
        values = sum(tensors)
        part = int(whole_units(values, self._gpus)) * BFLOAT16_BYTES
        self._gathers.set("input", {part: 1} if is_wide else NO_BLOCKS)
        self._gathers.set(("buffer", name), {values * BFLOAT16_BYTES: 1})
        self._gathers.drop("input")

    def _copy_out(self, unit: Hashable, tensors: Sequence[int]) -> None:
        self._requests.set(("unit", unit), packed(counted(size * BFLOAT16_BYTES for size in tensors)))
        self._there.add(unit)

    def _free(self, unit: Hashable) -> None:
        self._requests.drop(("unit", unit))
        self._there.discard(unit)
