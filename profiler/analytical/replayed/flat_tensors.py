"""The trained tensors of a model in the flat tensors of DeepSpeed's ZeRO, and the modules of a model in stage 3."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod

from profiler.analytical.formulas.layers.decoder_layer import OUTPUTS
from profiler.analytical.formulas.models.parameters import (
    adapted_projections,
    base_tensors,
    expert_lora_tensors,
    layer_lora_tensors,
    layer_tensors,
    projections,
)
from profiler.analytical.formulas.models.tensor_groups import TensorGroup
from profiler.analytical.formulas.models.trained import lora_rank, trained_tensors, trains_everything
from profiler.analytical.formulas.sizes.quantities import whole_units
from profiler.analytical.formulas.sizes.trial_keys import DecoderShape, TrialKeys
from profiler.analytical.replayed.gathering import Module, Weight
from profiler.analytical.replayed.layers import all_layers, alone
from profiler.analytical.timeline.sharding.zero_buckets import BUCKET

_ALIGNED = 2
"""A flat tensor has a multiple of so many values per GPU (`nccl_start_alignment_factor`)."""
EMBEDDING, _HEAD, OTHERS = "embedding", "head", "others"
"""Trained tensors outside of layers, as `Program` names their gradients; the others go with those of the last layer."""

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A trained tensor and where it is in the flat one of its group."""

    values: int
    own_values: int
    """Those that the first GPU updates."""
    parts: tuple[tuple[int, int], ...]
    """Each GPU that updates a part of it, and how many values; in order."""

    @property
    def is_own(self) -> bool:
        """Whether the first GPU keeps its gradient."""
        return self.own_values > 0


@dataclass(frozen=True, kw_only=True)
class FlatGroup:
    """The tensors of a group of parameters, which DeepSpeed flattens to one."""

    places: Mapping[Hashable, Sequence[Tensor]]
    """Those of each place, in the order of the model."""
    values: int
    """Of the flat tensor."""
    part_values: int
    """Those that each GPU updates."""

    @property
    def tensors(self) -> list[Tensor]:
        """All of them, in the order of the model."""
        return [tensor for tensors in self.places.values() for tensor in tensors]

    @property
    def own(self) -> list[Tensor]:
        """Those whose gradients the first GPU keeps."""
        return [tensor for tensor in self.tensors if tensor.is_own]


def flat_groups(spec: TrialKeys, architecture: DecoderShape, gpus: int) -> list[FlatGroup]:
    """Return matrices and vectors, which transformers has in two groups; none of a group without tensors."""
    shapes, found = trained_by_place(spec, architecture), list[FlatGroup]()
    for is_vector in (False, True):
        sizes = {
            key: [prod(shape) for shape in place if (len(shape) == 1) is is_vector] for key, place in shapes.items()
        }
        every = [size for place in sizes.values() for size in place]
        if every:
            tensors, part = iter(placed(every, gpus)), part_values(sum(every), gpus)
            places = {key: [next(tensors) for _ in place] for key, place in sizes.items()}
            found.append(FlatGroup(places=places, values=gpus * part, part_values=part))
    return found


def part_values(values: int, gpus: int) -> int:
    """Return the values that each GPU updates of a group. By hand, 9 values on 2 GPUs: 12 / 2 = 6.

    Source: `flatten_dense_tensors_aligned` and `get_data_parallel_partitions` in `stage_1_and_2.py`.
    """
    return int(whole_units(values, _ALIGNED * gpus)) * _ALIGNED


def placed(sizes: Iterable[int], gpus: int) -> list[Tensor]:
    """Return the tensors of a group, flattened in this order, with the parts that each GPU updates.

    By hand, 5 and 6 values on 2 GPUs, 6 each: all of the first one and 1 of the second are the first GPU's.

    Source: `initialize_gradient_partition` in `stage_1_and_2.py`.
    """
    known = list(sizes)
    part, start, found = part_values(sum(known), gpus), 0, list[Tensor]()
    for size in known:
        end = start + size
        parts = tuple(
            (gpu, min(end, (gpu + 1) * part) - max(start, gpu * part)) for gpu in range(start // part, -(-end // part))
        )
        found.append(Tensor(values=size, own_values=max(0, min(end, part) - start), parts=parts))
        start = end
    return found


def copied(tensors: Iterable[Tensor]) -> list[int]:
    """Return the values of each copy that a reduction of these tensors makes.

    Neighbours of one GPU are one slice, and a single slice is reduced as it is. Slices are reduced together until they
    have more than a bucket. By hand, 5 values of the first GPU, 1 of it and 5 of the second: 11 values.

    Source: `average_tensor`, `allreduce_and_scatter` and `allreduce_bucket` in `stage_1_and_2.py`, and
    `flatten_dense_tensors` of ATen.
    """
    every = (part for tensor in tensors for part in tensor.parts)
    slices = [sum(size for _, size in each) for _, each in groupby(every, key=lambda part: part[0])]
    found, together = list[int](), list[int]()
    for number, size in enumerate(slices):
        together.append(size)
        if sum(together) > BUCKET or number == len(slices) - 1:
            found += [sum(together)] if len(together) > 1 else []
            together = []
    return found


def trained_by_place(spec: TrialKeys, architecture: DecoderShape) -> dict[Hashable, list[Shape]]:
    """Return the shapes of the trained tensors of each layer and outside of layers, in the order of the model."""
    rank, targets = lora_rank(spec), spec.lora_target_modules or ()
    known: dict[int, list[Shape]] = {}
    layers = all_layers(architecture)
    for kind in layers:
        if id(kind) not in known:
            one = alone(kind)
            if trains_everything(spec):
                known[id(kind)] = _shapes(layer_tensors(one))
            else:
                every = (*layer_lora_tensors(one, rank, targets), *expert_lora_tensors(one, rank, targets))
                known[id(kind)] = _shapes(every, layers=int(kind.num_hidden_layers))
    outside = Counter(_shapes(trained_tensors(spec, architecture)))
    outside.subtract(shape for kind in layers for shape in known[id(kind)])
    rest = [shape for shape, count in outside.items() for _ in range(count)]
    table: Shape = (int(architecture.vocab_size), int(architecture.hidden_size))
    tables, others = ([shape for shape in rest if (shape == table) is is_table] for is_table in (True, False))
    of_layers: dict[Hashable, list[Shape]] = {number: known[id(kind)] for number, kind in enumerate(layers)}
    return {EMBEDDING: tables[:1], **of_layers, OTHERS: others, _HEAD: tables[1:]}


def _shapes(groups: Iterable[TensorGroup], layers: int = 1) -> list[Shape]:
    return [tuple(int(side) for side in group.shape) for group in groups for _ in range(int(group.copies) // layers)]


class Modules:
    """The modules of a model in the order in which they run, with adapters if `spec` has any."""

    def __init__(self, spec: TrialKeys, architecture: DecoderShape) -> None:
        """Make them."""
        is_full, hidden = trains_everything(spec), int(architecture.hidden_size)
        table = int(architecture.vocab_size) * hidden
        self.outer = [Module(ends=False) for _ in range(2 if is_full else 4)]
        """The model itself, with its decoder as the last of them."""
        self.embedding, self.positions = _leaf([table], is_trained=is_full, ends=False), Module()
        self.layers = [_layer(spec, kind) for kind in all_layers(architecture)]
        self.norm = _leaf([hidden], is_trained=is_full)
        self.head = _leaf([int(architecture.scores or architecture.vocab_size) * hidden], is_trained=is_full)
        self.head.weights[0].is_trained |= bool(architecture.scores)
        if architecture.tie_word_embeddings and not architecture.scores:
            self.head = Module(self.embedding.weights)
        every = [self.embedding, *self.layers, self.norm, self.head]
        weights = list(dict.fromkeys(weight for module in every for weight in module.all_weights))
        idle = Counter(int(group.elements) for group in base_tensors(architecture) for _ in range(int(group.copies)))
        idle.subtract(weight.values for weight in weights)
        self.weights = [*weights, *_leaf(idle.elements(), is_trained=False).weights]
        """Towers, which rows pass by, come last."""


def _leaf(sizes: Iterable[int], *, is_trained: bool, ends: bool = True) -> Module:
    return Module([Weight(size, is_trained=is_trained) for size in sizes], ends=ends)


def _layer(spec: TrialKeys, kind: DecoderShape) -> Module:
    """Return a decoder layer: a norm, attention, the other norms, and the MLP, or experts, which are one module."""
    is_full = trains_everything(spec)
    adapted = {part.name for part in adapted_projections(kind, spec.lora_target_modules or ()) if not is_full}
    every = [(group.is_outer, int(group.elements)) for group in layer_tensors(kind) for _ in range(int(group.copies))]
    rest, attention, mlp = Counter(size for is_norm, size in every if not is_norm), list[Module](), list[Module]()
    group = attention
    for part in projections(kind):
        sizes = [int(part.weights), int(part.out_features)][: 1 + bool(part.has_bias)]
        rest.subtract(sizes)
        module, sides = _leaf(sizes, is_trained=is_full), (part.in_features, part.out_features)
        if part.name in adapted:
            pair = [_leaf([int(lora_rank(spec)) * int(side)], is_trained=True) for side in sides]
            module = Module(inner=[module, Module(), *pair], is_adapted=True)
        # The module of the activation runs after these.
        group += [module, Module()] if part.name in ("gate_proj", "gate_up_proj") else [module]
        group = mlp if part.name in OUTPUTS else group
    first, *norms = [_leaf([size], is_trained=is_full) for is_norm, size in every if is_norm]
    mlp += [_leaf(rest.elements(), is_trained=is_full)] if +rest else []
    return Module(inner=[first, Module(inner=attention, ends=False), *norms, Module(inner=mlp)])
