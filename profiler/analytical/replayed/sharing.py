"""Requests of loading a model, and of sharing it with other GPUs: by DDP, or by FSDP 2 unit by unit.

Sources: `timeline/sharding/sharding.py`, `fsdp.py` and `gathered.py`, whose sizes these are.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import fields
from math import prod

from profiler.allocator.model.card_memory import AllocatorStats
from profiler.analytical.formulas.models.parameters import layer_lora_tensors, layer_tensors
from profiler.analytical.formulas.models.tensor_groups import TensorGroup
from profiler.analytical.formulas.models.trained import (
    BFLOAT16_BYTES,
    FLOAT32_BYTES,
    all_gradients,
    element_bytes,
    lora_rank,
    trains_everything,
)
from profiler.analytical.formulas.models.weights import (
    NF4_BLOCK,
    adapters,
    keeps_reference_model,
    reference,
    weights,
)
from profiler.analytical.formulas.models.parameters import projections
from profiler.analytical.formulas.sizes.quantities import Blocks, whole_units
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.trial_keys import DecoderShape, TrialKeys, layer_kinds
from profiler.analytical.optimizers import optimizer_scratch, optimizer_state
from profiler.analytical.replayed.requests import (
    NO_BLOCKS,
    Requests,
    blocks,
    counted,
    minus,
    others,
    packed,
    per_layer,
    plus,
    stages,
)
from profiler.analytical.timeline.instants import state, untied_head
from profiler.analytical.timeline.sharding.fsdp import Fsdp
from profiler.analytical.timeline.sharding.sharding import BROADCAST_BYTES
from profiler.analytical.timeline.step_instants import step_scratch
from profiler.domain.memory import MIB
from profiler.domain.trials.trial import DistributedType, Tuning


def all_layers(architecture: DecoderShape) -> list[DecoderShape]:
    """Return the kind of each layer, kinds in the order of their first layers."""
    return [kind for kind in layer_kinds(architecture) for _ in range(int(kind.num_hidden_layers))]


class Alone:
    """What the model of one GPU requests: all of it, before training."""

    def __init__(self, requests: Requests, spec: TrialKeys, architecture: DecoderShape) -> None:
        """Prepare it; `spec` is itemised."""
        self._requests, self._spec, self._architecture = requests, spec, architecture

    gathers_reference = False
    """Whether a reference model needs what the policy does not."""

    def load(self) -> None:
        """Request the weights, layer by layer, adapters and a reference model.

        A matrix in 4 bits is made of one in the type of the weights, and float32 scales. An LM head that is tied is made
        and dropped.
        """
        requests, spec, architecture = self._requests, self._spec, self._architecture
        head = blocks(untied_head(spec, architecture).size)
        _load_model(requests, "policy", spec, architecture, blocks(weights(spec, architecture).size))
        requests.pass_through("head", [head, NO_BLOCKS])
        made, element = blocks(adapters(spec, architecture).size), element_bytes(spec).adapter
        requests.set("wide adapters", {size // element * FLOAT32_BYTES: count for size, count in made.items()})
        kept = blocks(reference(spec, architecture).size)
        if spec.ref_adapter:
            requests.set("copied adapters", kept)
        if element < FLOAT32_BYTES:
            requests.set("adapters", made)
            requests.drop("wide adapters")
        if kept and not spec.ref_adapter:
            _load_model(requests, "reference", spec, architecture, kept)
            requests.pass_through("head", [head, NO_BLOCKS])

    def send(self) -> None:
        """Request what is there from the beginning of training on."""

    def begin_pass(self, *, reduces: bool) -> None:
        """Begin a micro-batch; `reduces` if its gradients are exchanged."""

    def begin(self, *, adapted: bool = True) -> None:
        """Begin a forward; without `adapted` of a reference."""

    def enter(self, number: int) -> None:
        """Request what a layer needs before it runs."""

    def leave(self, number: int) -> None:
        """Free what it needed."""

    def head(self) -> None:
        """Request what the LM head needs."""

    def end(self) -> None:
        """End a forward."""

    def begin_backward(self) -> None:
        """Begin a backward."""

    def enter_backward(self, number: int) -> None:
        """Request what the backward of a layer needs."""

    def leave_backward(self, number: int) -> None:
        """Free what it needed."""

    def reduce(self, weights: Hashable) -> None:
        """Exchange gradients."""

    def end_backward(self) -> None:
        """End a backward."""

    def update(self) -> None:
        """Run the optimizer."""
        requests, spec, architecture = self._requests, self._spec, self._architecture
        requests.set("state", blocks(state(spec, architecture).size))
        requests.pass_through("work", [*stages(step_scratch(spec, architecture).size), NO_BLOCKS])

    def counters(self, alloc_conf: str) -> AllocatorStats:
        return self._requests.counters(alloc_conf)


def _load_model(requests: Requests, name: str, spec: TrialKeys, architecture: DecoderShape, whole: Blocks) -> None:
    layers, block = all_layers(architecture), block_of(spec)
    each, rest = per_layer(whole, len(layers)), others(whole, len(layers))
    embedding = {max(rest): 1} if rest else NO_BLOCKS
    requests.set((name, "embedding"), embedding)
    is_packed = spec.tuning is Tuning.QLORA and name == "policy"
    for number, kind in enumerate(layers):
        made: dict[int, int] = {}
        for part in projections(kind) if is_packed else ():
            wide = blocks(block(part.weights * element_bytes(spec).weight))
            scales = blocks(block(-(-part.weights // NF4_BLOCK) * FLOAT32_BYTES))
            requests.set("wide", plus(wide, scales))
            size = int(block(-(-part.weights // 2)))
            if made.get(size, 0) < each.get(size, 0):
                made[size] = made.get(size, 0) + 1
                requests.set((name, number), made)
            requests.pass_through("wide", [plus(wide, scales, scales), NO_BLOCKS])
        requests.set((name, number), each)
    requests.set((name, "rest"), minus(rest, embedding))


_SENT_BYTES, _BUCKET_BYTES = (BROADCAST_BYTES, BROADCAST_BYTES), (MIB, 25 * MIB)
"""Of the first and of each later tensor: `_DEFAULT_FIRST_BUCKET_BYTES` and `_DEFAULT_BUCKET_CAP_MB` of torch's DDP."""
_AT_ONCE, _REBUILT_IN = 2, 2
"""`max_in_flight` of `broadcast_coalesced` in torch's `comm.cpp`, and the pass that rebuilds buckets."""


def filled(sizes: Iterable[int], first_bytes: int, bytes_each: int) -> list[list[int]]:
    """Return tensors in parts that are full once they have `bytes_each`, the first once it has `first_bytes`.

    By hand, tensors of 3, 5, 4 and 9 B in parts of 4 and 8 B: 3 + 5, 4 + 9.

    Source: `compute_bucket_assignment_by_size` in torch's `csrc/distributed/c10d/reducer.cpp`.
    """
    parts: list[list[int]] = [[]]
    for size in sizes:
        if sum(parts[-1]) >= (first_bytes if len(parts) == 1 else bytes_each):
            parts.append([])
        parts[-1].append(size)
    return parts


class Replicas(Alone):
    """What DDP requests: copies of the weights while it sends them, and its buckets for gradients.

    With checkpointing, without adapters, one bucket has all gradients until the second forward makes the usual ones.
    Otherwise transformers lets DDP look for unused parameters, and its buckets stay.

    Source: `_BucketCapacityConfig` in torch's `nn/parallel/distributed.py`, `Reducer::rebuild_buckets`, and
    `create_accelerator_and_postprocess` in transformers' `trainer.py`.
    """

    def __init__(self, requests: Requests, spec: TrialKeys, architecture: DecoderShape) -> None:
        """Prepare them; `spec` is itemised."""
        super().__init__(requests, spec, architecture)
        self._layers = len(all_layers(architecture))
        self._rebuilds, self._passes = trains_everything(spec) and bool(spec.gradient_checkpointing), 0
        of_models = (weights(spec, architecture), adapters(spec, architecture))
        self._models = [self._in_order(blocks(term.size)) for term in of_models]
        self._gradients = self._in_order(blocks(all_gradients(spec, architecture).size))

    def send(self) -> None:
        """Send the model of the first process, two tensors at once, and make the first buckets."""
        requests, parts = self._requests, [part for each in self._models for part in filled(each, *_SENT_BYTES)]
        for number, part in enumerate(parts):
            requests.drop(("sent", number - _AT_ONCE))
            requests.set(("sent", number), {sum(part): 1} if len(part) > 1 else NO_BLOCKS)
        requests.drop(*(("sent", number) for number in range(len(parts))))
        self._make_buckets([self._gradients] if self._rebuilds else filled(self._gradients, *_BUCKET_BYTES))

    def begin_pass(self, *, reduces: bool) -> None:  # noqa: ARG002
        """Before the second micro-batch DDP makes the usual buckets."""
        self._passes += 1
        if self._rebuilds and self._passes == _REBUILT_IN:
            self._requests.drop("buckets")
            self._make_buckets(filled(reversed(self._gradients), *_BUCKET_BYTES))

    def _make_buckets(self, gradients: Iterable[list[int]]) -> None:
        self._requests.set("buckets", counted(sum(part) for part in gradients if part))

    def _in_order(self, whole: Blocks) -> list[int]:
        """Return the tensors of a model: the embedding, then those of each layer, then the others."""
        each, rest = per_layer(whole, self._layers), others(whole, self._layers)
        first = {max(rest): 1} if rest else NO_BLOCKS
        parts = (first, *[each] * self._layers, minus(rest, first))
        return [size for part in parts for size, count in part.items() for _ in range(count)]


_EMBEDDING, _TAIL = "embedding", "tail"


class ShardedUnits(Alone):
    """What FSDP 2 requests: shards, and the units that are gathered on a stream of their own and copied out.

    Gradients are reduced on a third stream. Blocks of one stream are never reused by another.
    """

    def __init__(self, requests: Requests, spec: TrialKeys, architecture: DecoderShape, *, loaded: TrialKeys) -> None:
        """Prepare them; `spec` is itemised, as one GPU computes it, and `loaded` the trial."""
        super().__init__(requests, spec, architecture)
        self._gathers, self._reduces_on = Requests(), Requests()
        self._fsdp = Fsdp(loaded, architecture)
        self._gpus, self._stay = int(spec.num_processes), not loaded.fsdp_reshard_after_forward
        self._trains_all = trains_everything(spec)
        self._is_wide = int(element_bytes(loaded).weight) != BFLOAT16_BYTES
        self._tied = bool(architecture.tie_word_embeddings) and not architecture.scores
        kinds = all_layers(architecture)
        self._count = len(kinds)
        known: dict[int, list[int]] = {}
        for kind in kinds:
            if id(kind) not in known:
                known[id(kind)] = self._tensors(kind)
        self._units: dict[Hashable, list[int]] = {number: known[id(kind)] for number, kind in enumerate(kinds)}
        hidden = int(architecture.hidden_size)
        table = hidden * int(architecture.vocab_size)
        head = int(architecture.scores) * hidden if architecture.scores else table
        self._units[_TAIL] = [hidden, table if self._tied else head]
        if not self._tied:
            self._units[_EMBEDDING] = [table]
        self._there: set[Hashable] = set()
        self._last: Hashable | None = None
        self._reduces, self._reference = True, False
        self.gathers_reference = bool(keeps_reference_model(loaded))

    def _tensors(self, kind: DecoderShape) -> list[int]:
        groups: Sequence[TensorGroup] = layer_tensors(kind)
        found = [int(group.elements) for group in groups for _ in range(int(group.copies))]
        if not self._trains_all:
            spec = self._spec
            lora = layer_lora_tensors(kind, lora_rank(spec), spec.lora_target_modules or ())
            layers = int(kind.num_hidden_layers)
            found += [int(group.elements) for group in lora for _ in range(int(group.copies) // layers)] * (
                2 if spec.ref_adapter else 1
            )
        return [each for each in found if each]

    def load(self) -> None:
        """Move the reference as one unit, and then the model unit by unit: a whole unit is there with its shards."""
        requests, element = self._requests, int(element_bytes(self._fsdp.spec).weight)
        everything = [size for unit in self._units.values() for size in unit]
        if keeps_reference_model(self._fsdp.spec):
            requests.set("whole", packed(counted(size * element for size in everything)))
            requests.set("reference", self._shards(everything, element))
            requests.drop("whole")
        
    def send(self) -> None:
        requests = self._requests
        element = FLOAT32_BYTES if self._trains_all else int(element_bytes(self._fsdp.spec).weight)
        order = [*range(self._count), *((_EMBEDDING,) if not self._tied else ()), _TAIL]
        for key in order:
            unit = self._units[key]
            requests.set("whole", packed(counted(size * element for size in unit)))
            requests.set(("shards", key), self._shards(unit, element))
            requests.drop("whole")

    def _shards(self, unit: Sequence[int], element: int) -> Blocks:
        return packed(counted(-(-size // self._gpus) * element for size in unit))

    def begin_pass(self, *, reduces: bool) -> None:
        self._reduces = reduces

    def _gather(self, key: Hashable) -> None:
        total = sum(self._units[key])
        gathers = self._gathers
        if self._trains_all or self._is_wide:
            gathers.set("input", {-(-total // self._gpus) * BFLOAT16_BYTES: 1})
        gathers.set(("buffer", key), {total * BFLOAT16_BYTES: 1})
        gathers.drop("input")

    def _copy_out(self, key: Hashable) -> None:
        self._requests.set(("unit", key), packed(counted(size * BFLOAT16_BYTES for size in self._units[key])))
        self._there.add(key)

    def _free(self, key: Hashable) -> None:
        self._requests.drop(("unit", key))
        self._there.discard(key)

    def _come(self, key: Hashable) -> None:
        if key in self._there:
            return
        self._gather(key)
        self._copy_out(key)
        if self._last is not None:
            self._gathers.drop(("buffer", self._last))
        self._last = key

    def begin(self, *, adapted: bool = True) -> None:
        self._reference = not adapted and keeps_reference_model(self._fsdp.spec) and not self._spec.ref_adapter
        if self._reference and self._requests.has("gathered reference"):
            return
        if self._reference:
            everything = [size for unit in self._units.values() for size in unit]
            total = sum(everything)
            if self._is_wide:
                self._gathers.set("input", {-(-total // self._gpus) * BFLOAT16_BYTES: 1})
            self._gathers.set("reference", {total * BFLOAT16_BYTES: 1})
            self._gathers.drop("input")
            self._requests.set("gathered reference", packed(counted(size * BFLOAT16_BYTES for size in everything)))
            return
        if self._tied:
            self._come(_TAIL)
        else:
            self._come(_EMBEDDING)
            if not self._stay:
                self._free(_EMBEDDING)

    def enter(self, number: int) -> None:
        if not self._reference:
            self._come(number)

    def leave(self, number: int) -> None:
        if not self._reference and not self._stay:
            self._free(number)

    def head(self) -> None:
        if not self._reference and not self._tied:
            self._come(_TAIL)

    def end(self) -> None:
        if self._reference:
            self._gathers.drop("reference")
            if not self._stay:
                self._requests.drop("gathered reference")
        elif self._last is not None:
            self._gathers.drop(("buffer", self._last))
            self._last = None

    def begin_backward(self) -> None:
        if not self._stay:
            self._gather(self._count - 1)

    def enter_backward(self, number: int) -> None:
        if number not in self._there:
            if not self._gathers.has(("buffer", number)):
                self._gather(number)
            self._copy_out(number)
            self._gathers.drop(("buffer", number))
        following: Hashable = number - 1 if number else _EMBEDDING
        if following in self._units and following not in self._there:
            self._gather(following)

    def leave_backward(self, number: int) -> None:
        self._free(number)

    def reduce(self, weights: Hashable) -> None:
        requests, on = self._requests, self._reduces_on
        key: Hashable = weights
        if weights == "head" or (weights == "embedding" and self._tied):
            key = _TAIL
        if weights == "embedding" and not self._tied:
            self._gathers.drop(("buffer", _EMBEDDING))
        if not isinstance(key, int):
            self._free(key)
        made = requests.sizes(("gradients", weights))
        if not self._reduces or not made:
            return
        total = sum(size * count for size, count in made.items())
        requests.drop("reduced input")
        requests.set("reduced input", {total: 1})
        requests.drop(("gradients", weights))
        on.set("output", {-(-total // self._gpus): 1})
        on.set(("shards", weights), {2 * -(-total // self._gpus): 1})
        on.drop("output")

    def end_backward(self) -> None:
        self._requests.drop("reduced input")
        for key in list(self._there):
            if key != _TAIL or self._trains_all:
                self._free(key)

    def update(self) -> None:
        fsdp, requests, block = self._fsdp, self._requests, block_of(self._spec)
        states = optimizer_state(self._spec.optim, fsdp.tensors, FLOAT32_BYTES, block)
        requests.set("state", blocks(states.size))
        scratch = optimizer_scratch(
            self._spec.optim, fsdp.tensors, FLOAT32_BYTES, block, weight_decay=self._spec.weight_decay
        )
        requests.pass_through("work", [*stages(scratch.size), NO_BLOCKS])
        for weights in (*range(self._count), "head", "embedding", "adapters"):
            self._reduces_on.drop(("shards", weights))

    def counters(self, alloc_conf: str) -> AllocatorStats:
        parts = [each.counters(alloc_conf) for each in (self._requests, self._gathers, self._reduces_on)]
        return AllocatorStats(**{
            field.name: sum(getattr(part, field.name) for part in parts) for field in fields(AllocatorStats)
        })
