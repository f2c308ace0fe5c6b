"""Groups of tensors of a model: linear layers and parameters, those of a vision tower, and of second inputs of layers.

Source: `modeling_qwen2_vl.py`, `modeling_qwen2_5_vl.py` and `modeling_qwen3_vl.py` in transformers 5.23.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, wraps
from math import prod
from typing import TypeVar

from profiler.analytical.formulas.sizes.quantities import Count, Flag
from profiler.analytical.formulas.sizes.trial_keys import DecoderShape
from profiler.domain.architectures.architecture import Architecture, VisionTower
from profiler.domain.architectures.families import MODEL_PROJECTION
from profiler.domain.trials.trial import ALL_LINEAR

Result = TypeVar("Result")

_MOST_MODELS = 64  # whose results are kept; a command line names a few


def counted_once(formula: Callable[[DecoderShape], Result]) -> Callable[[DecoderShape], Result]:
    """Keep what `formula` returns for each `Architecture`: an estimate asks for its tensors hundreds of times.

    The arrays of many models are counted each time. The result must be immutable, because all callers share it.
    """
    kept = lru_cache(maxsize=_MOST_MODELS)(formula)

    @wraps(formula)
    def counted(architecture: DecoderShape) -> Result:
        return kept(architecture) if isinstance(architecture, Architecture) else formula(architecture)

    return counted


@dataclass(frozen=True, kw_only=True)
class Projection:
    """A linear layer of each decoder layer."""

    name: str
    in_features: Count
    out_features: Count
    has_bias: Flag = False

    @property
    def weights(self) -> Count:
        """Elements of the weight matrix."""
        return self.in_features * self.out_features


@dataclass(frozen=True, kw_only=True)
class TensorGroup:
    """Parameters of the same shape."""

    shape: tuple[Count, ...]
    copies: Count
    """Number of tensors; 0 if the model has none."""
    is_embedding: bool = False
    """Whether it is the weight of an `nn.Embedding` (a tied LM head is the same parameter)."""
    is_outer: bool = False
    """Whether it is an embedding, the LM head or a norm, which `dtype=bfloat16_layers` has in float32."""

    @property
    def elements(self) -> Count:
        """Elements of one tensor."""
        return prod(self.shape)

    @property
    def total(self) -> Count:
        """Elements of all tensors."""
        return self.elements * self.copies


@dataclass(frozen=True, kw_only=True)
class AdaptedExperts:
    """The parameters of a mixture that get an adapter."""

    gate_up: bool
    down: bool
    router: bool


def count_of(groups: Sequence[TensorGroup]) -> Count:
    """Return the elements of all `groups`."""
    return sum(group.total for group in groups)


_PROJ = "attn.proj"
"""The output layer of attention. peft also takes the convolution of the patches for a target named `proj`."""


def block_projections(tower: VisionTower) -> tuple[Projection, ...]:
    """Return the linear layers of one block; all of them have a bias."""
    hidden, inner = tower.hidden_size, tower.intermediate_size
    *first, last = tower.mlp_names
    return (
        Projection(name="qkv", in_features=hidden, out_features=3 * hidden, has_bias=True),
        Projection(name=_PROJ, in_features=hidden, out_features=hidden, has_bias=True),
        *(Projection(name=name, in_features=hidden, out_features=inner, has_bias=True) for name in first),
        Projection(name=last, in_features=inner, out_features=hidden, has_bias=True),
    )


def merger_projections(tower: VisionTower) -> tuple[Projection, ...]:
    """Return the linear layers of one merger, which makes a token of several patches."""
    merged = tower.merged_size
    first, last = tower.mlp_names if tower.position_embeddings else ("mlp.0", "mlp.2")
    return (
        Projection(name=first, in_features=merged, out_features=merged, has_bias=True),
        Projection(name=last, in_features=merged, out_features=tower.out_hidden_size, has_bias=True),
    )


def mergers(tower: VisionTower) -> int:
    """Return the number of mergers: that of the last block, and those of the deepstack."""
    return 1 + tower.deepstack


def is_adapted(part: Projection, targets: Sequence[str]) -> bool:
    """Return whether a linear layer gets an adapter: all of them for peft's `all-linear`."""
    return tuple(targets) == (ALL_LINEAR,) or part.name in targets


def adapted_in_block(tower: VisionTower, targets: Sequence[str]) -> tuple[Projection, ...]:
    """Return the linear layers of one block that get an adapter."""
    return tuple(part for part in block_projections(tower) if is_adapted(part, targets))


def adapted_in_merger(tower: VisionTower, targets: Sequence[str]) -> tuple[Projection, ...]:
    """Return the linear layers of one merger that get an adapter."""
    return tuple(part for part in merger_projections(tower) if is_adapted(part, targets))


def tower_tensors(tower: VisionTower) -> tuple[TensorGroup, ...]:
    """Return all parameters of the tower.

    By hand, a tower of one RMS-normed block with h = 8, MLP 16 wide with a gate, patches of 12 values merged 2 x 2 to
    tokens of 10: 96 + (8 x 24 + 24) + (64 + 8) + 2 x (128 + 16) + (128 + 8) + 2 x 8 + 8 + (32 x 32 + 32) + (320 + 10) =
    2,218.
    """
    hidden, norm_tensors = tower.hidden_size, 2 if tower.has_layer_norm else 1
    groups = [TensorGroup(shape=(hidden, tower.patch_values), copies=1)]
    if tower.patch_bias:
        groups.append(TensorGroup(shape=(hidden,), copies=1))
    if tower.position_embeddings:
        groups.append(TensorGroup(shape=(tower.position_embeddings, hidden), copies=1, is_embedding=True))
    groups.extend(_layers(block_projections(tower), tower.depth))
    groups.extend(_layers(merger_projections(tower), mergers(tower)))
    groups.append(TensorGroup(shape=(hidden,), copies=norm_tensors * (2 * tower.depth + 1)))
    if tower.deepstack:
        groups.append(TensorGroup(shape=(tower.merged_size,), copies=norm_tensors * tower.deepstack))
    return tuple(groups)


def _layers(parts: Sequence[Projection], copies: int) -> list[TensorGroup]:
    return [
        TensorGroup(shape=shape, copies=copies)
        for part in parts
        for shape in ((part.out_features, part.in_features), (part.out_features,))
    ]


def tower_lora_tensors(tower: VisionTower, rank: Count, targets: Sequence[str]) -> tuple[TensorGroup, ...]:
    """Return the LoRA matrices of the tower, as those of the language model."""
    found = [(part, tower.depth) for part in adapted_in_block(tower, targets)]
    found += [(part, mergers(tower)) for part in adapted_in_merger(tower, targets)]
    return tuple(
        TensorGroup(shape=shape, copies=copies)
        for part, copies in found
        for shape in ((rank, part.in_features), (part.out_features, rank))
    )


def outer_projections(architecture: DecoderShape) -> tuple[Projection, ...]:
    """Return the linear layers outside of decoder layers: that of their second inputs, if they have some."""
    second = architecture.layer_inputs
    if second is None:
        return ()
    return (Projection(name=MODEL_PROJECTION, in_features=architecture.hidden_size, out_features=second.whole_width),)


def outer_tensors(architecture: DecoderShape) -> tuple[TensorGroup, ...]:
    """Return the parameters of the second inputs of all layers: embedding, linear layer and norm; none without them.

    By hand, Gemma 4 E4B: 262,144 x 10,752 = 2,818,572,288 in the embedding, 10,752 x 2,560 and 256.
    """
    second = architecture.layer_inputs
    if second is None:
        return ()
    embedding = TensorGroup(shape=(second.vocab_size, second.whole_width), copies=1, is_embedding=True)
    linear = (
        TensorGroup(shape=(part.out_features, part.in_features), copies=1) for part in outer_projections(architecture)
    )
    return (embedding, *linear, TensorGroup(shape=(second.width,), copies=1))


def outer_adapted(architecture: DecoderShape, targets: Sequence[str]) -> tuple[Projection, ...]:
    """Return those of `outer_projections` that get an adapter."""
    everything = tuple(targets) == (ALL_LINEAR,)
    return tuple(part for part in outer_projections(architecture) if everything or part.name in targets)


def lora_pairs(parts: Sequence[Projection], rank: Count, copies: Count = 1) -> list[TensorGroup]:
    """Return A and B of each of these linear layers, in so many layers."""
    return [
        TensorGroup(shape=shape, copies=copies)
        for part in parts
        for shape in ((rank, part.in_features), (part.out_features, rank))
    ]
