"""Requests of loading the models, and of a rollout by transformers' `generate`."""

from collections.abc import Hashable, Sequence
from typing import Protocol

from profiler.analytical.formulas.layers.decoder_layer import ATTENTION_INPUTS
from profiler.analytical.formulas.layers.eager_attention import attention_mask_bytes
from profiler.analytical.formulas.models.parameters import projections
from profiler.analytical.formulas.models.tensor_groups import Projection
from profiler.analytical.formulas.models.trained import (
    FLOAT32_BYTES,
    computed_bytes,
    element_bytes,
    trains_everything,
)
from profiler.analytical.formulas.models.weights import (
    NF4_BLOCK,
    SMALL_MATRIX,
    adapters,
    reference,
    weights,
    widened_matrix_bytes,
)
from profiler.analytical.formulas.rollout import (
    kv_cache,
    kv_element_bytes,
    last_logits,
    sampling,
)
from profiler.analytical.formulas.sizes.quantities import Blocks, Count, one_value, stages_of
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.trial_keys import Batch, DecoderShape, TrialKeys, layer_kinds
from profiler.analytical.replayed.layers import Forward, all_layers, alone, forward_stages, of_one_layer
from profiler.analytical.replayed.requests import (
    NO_BLOCKS,
    Requests,
    blocks,
    counted,
    minus,
    others,
    per_layer,
    plus,
    stages,
    times,
    union,
)
from profiler.analytical.timeline.instants import untied_head
from profiler.analytical.timeline.step_instants import decoding, generation_casts
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.cards.card import Chip
from profiler.domain.cards.gpu_names import find_gpu
from profiler.domain.memory import MIB
from profiler.domain.trials.trial import Attention, Dtype, TrialSpec, Tuning

_STEP_BYTES = 2 * MIB
"""Growth of a tensor of the cache per replayed decoding step: that of segments from 10 MiB on."""
_ASSUMED = Chip(compute_capability=(9, 0), multiprocessors=132)
"""Without the name of a card its kernels are assumed to be Hopper's, as for cuBLAS's workspaces."""
MOST_GROWN = 15_000
"""Most tensors of a cache that grow in one rollout, to bound its time. Beyond it a step is longer."""


_BLOCK_OUTPUTS = 64
_FEWEST_ROWS, _ROWS_WITHOUT_TENSOR_CORES = 4, 7
_TURING, _AMPERE, _SMALL_AMPERE, _HOPPER, _SMALL_BLACKWELL, _SPARK = (7, 5), (8, 0), (8, 6), (9, 0), (12, 0), (12, 1)
_BLACKWELL = 10
"""Compute capabilities, and of the last the first part."""


class GrowingCache:
    """Tensors that are concatenated to longer ones, layer by layer: the longer one is there before the other goes."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._layers: list[list[tuple[int, range]]] = []
        """Bytes and block of each tensor."""

    def add(self, sizes: Sequence[int]) -> None:
        """Add a layer with tensors of these bytes."""
        self._layers.append([(size, self._requests.allocate(size)) for size in sizes])

    def grow(self, layer: int, sizes: Sequence[int]) -> None:
        """Replace the tensors of a layer; one of the same bytes stays."""
        tensors = self._layers[layer]
        for place, size in enumerate(sizes):
            bytes_before, before = tensors[place]
            if bytes_before != size:
                tensors[place] = size, self._requests.allocate(size)
                self._requests.free(before)

    def drop(self) -> None:
        """Free all tensors."""
        for tensors in self._layers:
            for _, block in tensors:
                self._requests.free(block)
        self._layers = []


def load_models(requests: Requests, spec: TrialKeys, architecture: DecoderShape) -> None:
    """Request the weights, layer by layer, adapters and a reference model.

    A matrix in 4 bits is made of one in the type of the weights, and float32 scales. A tied LM head is made and
    dropped.
    """
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


class Forwards(Protocol):
    """What the forward of a model requests next to the tensors that it computes (`sharing.py`)."""

    def begin(self) -> None: ...  # noqa: D102  as the methods of `Alone`
    def enter(self, number: int) -> None: ...  # noqa: D102
    def leave(self, number: int) -> None: ...  # noqa: D102
    def enter_head(self) -> None: ...  # noqa: D102
    def end(self) -> None: ...  # noqa: D102
    def generate(self, *, begins: bool) -> None: ...  # noqa: D102


class Rollouts:
    """The rollouts of a trial: a prefill, and a cache that grows to its end, or in a synthetic one all at once."""

    def __init__(self, requests: Requests, spec: TrialKeys, architecture: DecoderShape, sharing: Forwards) -> None:
        """Prepare them; `spec` is itemised."""
        self._requests, self._spec, self._architecture = requests, spec, architecture
        self._layers = all_layers(architecture)
        self._kinds = tuple({id(kind): kind for kind in self._layers}.values())  # as objects: they are keys here
        self._kept: dict[Hashable, list[int]] = {}
        self._prompt = int(spec.max_prompt_length)
        self._end = int(spec.max_prompt_length + spec.max_completion_length - 1)
        self._sampling = [stages(sampling(spec, architecture).size)[0]]
        casts, head, transient = generation_casts(spec, architecture)
        self._casts = per_layer(blocks(casts.size), len(self._layers))
        self._all_casts = blocks(casts.size + head.size)
        self._transient = blocks(transient.size)
        self._products = {id(kind): _widened(spec, kind) for kind in self._kinds}
        self._sharing = sharing
        # What a layer needs grows with the tokens, unless a window ends between: nothing at both ends is nothing.
        self._needs = {
            id(kind): any(self._needed(kind, tokens, [1]) for tokens in (self._prompt, self._end))
            for kind in self._kinds
        }

    def run(self, *, grows: bool) -> None:
        """Request and free the blocks of one rollout; with `grows` token by token, else as `rollout=synthetic`."""
        requests, cache = self._requests, GrowingCache(self._requests)
        self._sharing.generate(begins=True)
        self._prefill(cache)
        prompt, tokens = self._prompt, self._end - self._prompt
        steps = self._steps() if grows else 1
        for step in range(1, steps + 1):
            self._sharing.begin()
            for number, kind in enumerate(self._layers):
                self._sharing.enter(number)
                if self._casts:
                    requests.set("casts", times(self._casts, number + 1))
                before, after = self._products[id(kind)]
                requests.pass_through("work", [before, NO_BLOCKS] if before else [])
                sizes = self._sizes(kind, prompt + tokens * step // steps)
                cache.grow(number, sizes)
                # Layers share a step, so that what grows faster than the cache does not jump.
                part = step * len(self._layers) - (len(self._layers) - number - 1 if grows else 0)
                if self._needs[id(kind)]:
                    needed = self._needed(kind, prompt + tokens * part // (steps * len(self._layers)), sizes)
                    requests.pass_through("work", [*needed, NO_BLOCKS])
                requests.pass_through("work", [after, NO_BLOCKS] if after else [])
                self._sharing.leave(number)
            self._sharing.enter_head()
            self._sharing.end()
            self._sample()
        requests.drop("logits", "mask")
        cache.drop()
        self._sharing.generate(begins=False)

    def _prefill(self, cache: GrowingCache) -> None:
        requests, spec = self._requests, self._spec
        prompts = Batch(
            rows=spec.generation_batch_size,
            prompt_tokens=spec.max_prompt_length,
            completion_tokens=0,
            scored_tokens=0,
            has_mask=False,
        )
        requests.set("mask", blocks(attention_mask_bytes(spec, self._architecture, prompts)))
        kept: dict[int, Forward] = {}
        self._sharing.begin()
        for number, kind in enumerate(self._layers):
            self._sharing.enter(number)
            if id(kind) not in kept:
                kept[id(kind)] = forward_stages(spec, kind, prompts, adapted=True, autocast=False)
            requests.pass_through("work", kept[id(kind)].before)
            cache.add(self._sizes(kind, self._prompt))
            requests.set("casts", times(self._casts, number + 1))
            kept[id(kind)].attend(requests)
            self._sharing.leave(number)
        self._sharing.enter_head()
        self._sharing.end()
        requests.drop("work")
        self._sample()
        requests.drop("logits")

    def _sample(self) -> None:
        """Compute the logits of one token, and sample it when what autocast made is gone."""
        requests = self._requests
        requests.set("casts", self._all_casts)
        if self._transient:
            requests.set("logits", plus(self._transient, blocks(last_logits(self._spec, self._architecture).size)))
        requests.drop("casts")
        requests.pass_through("logits", self._sampling)

    def _needed(self, kind: DecoderShape, tokens: int, sizes: list[int]) -> list[Blocks]:
        """Return what a layer needs to decode one token: repeated keys and values, or narrower copies of them."""
        spec = self._spec
        made: list[Blocks] = [each for each in stages(decoding(spec, alone(kind), tokens).size) if each]
        wide, narrow = kv_element_bytes(spec), computed_bytes(spec, autocast=False)
        if trains_everything(spec) and narrow < wide and spec.attn_implementation is not Attention.EAGER:
            made.append(counted(int(size * narrow // wide) for size in sizes))
        return made

    def _sizes(self, kind: DecoderShape, tokens: int) -> list[int]:
        """Return the bytes of the tensors that one layer has of `tokens` tokens."""
        key = id(kind), tokens
        if key not in self._kept:
            window = kind.sliding_window if kind is not self._layers[-1] and tokens > self._prompt else None
            cache = kv_cache(
                alone(kind),
                sequences=self._spec.generation_batch_size,
                tokens=tokens if window is None else min(tokens, window),
                element=kv_element_bytes(self._spec),
                block=block_of(self._spec),
            )
            (parts,) = stages_of(of_one_layer(cache.size, kind))
            self._kept[key] = [size for size, count in parts for _ in range(count)]
        return self._kept[key]

    def _steps(self) -> int:
        """Return the number of decoding steps that are replayed."""
        tokens = self._end - self._prompt
        growths = [
            after - before
            for kind in self._kinds
            for before, after in zip(self._sizes(kind, self._prompt), self._sizes(kind, self._end), strict=True)
        ]
        tensors = sum(len(self._sizes(kind, self._end)) for kind in self._layers)
        return max(1, min(tokens, -(-max(growths) // _STEP_BYTES), MOST_GROWN // max(tensors, 1)))


def _widened(spec: TrialKeys, kind: DecoderShape) -> tuple[Blocks, Blocks]:
    """Return the copies of weights that decoding makes for one product: before the cache grows, and after.

    Those of 4-bit weights where the kernel for few rows is not used, and those of float16 weights under autocast.
    """
    sizes, block = element_bytes(spec), block_of(spec)
    card = find_gpu(one_value(spec.gpu))
    chip = card.chip if card else _ASSUMED
    before: Blocks = NO_BLOCKS
    after: Blocks = NO_BLOCKS
    for part in projections(kind):
        copy: Count = 0
        if spec.tuning is Tuning.QLORA:
            if spec.generation_batch_size > most_rows_of_four_bits(chip, part, one_value(spec.dtype)):
                copy = widened_matrix_bytes(spec, part.weights, autocast=False)
        elif trains_everything(spec) and sizes.autocast_casts and not sizes.autocast_caches:
            copy = block(part.weights * sizes.compute)
        if part.name in ATTENTION_INPUTS:
            before = union(before, blocks(copy))
        else:
            after = union(after, blocks(copy))
    return before, after


def widened_products(spec: TrialSpec, architecture: Architecture, chip: Chip) -> tuple[bool, ...]:
    """Return of each matrix in 4 bits whether decoding widens it on a card: what a replay reads of its whole chip."""
    rows = spec.generation_batch_size
    parts = (part for kind in layer_kinds(architecture) for part in projections(kind))
    return tuple(rows > most_rows_of_four_bits(chip, part, spec.dtype) for part in parts)


def most_rows_of_four_bits(chip: Chip, part: Projection, dtype: Dtype) -> int:
    """Return for how many rows at most a product reads a matrix in nf4 directly, without widening it.

    By hand, 4,096 x 4,096 in bfloat16: 64 blocks of 64 outputs, on an H100 (132 multiprocessors) less than half a wave:
    7 rows; on an RTX 4090 (128) half a wave: 8 rows.

    Source: `_gemm_4bit_use_custom_cuda` in bitsandbytes' `backends/cuda/ops.py`, 0.50, whose thresholds are measured.
    Of its cases with 6 and 7 rows the ordinary one is taken.
    """
    outputs, width, blocks = int(part.out_features), int(part.in_features), -(-int(part.out_features) // _BLOCK_OUTPUTS)
    capability, waves = chip.compute_capability, blocks / chip.multiprocessors
    is_half = blocks >= chip.multiprocessors // 2
    is_long, is_tall = width >= outputs, width > 2 * outputs
    if dtype is Dtype.FLOAT32 or capability < _TURING or (capability == _TURING and dtype is not Dtype.FLOAT16):
        return _ROWS_WITHOUT_TENSOR_CORES
    if capability[0] == _BLACKWELL:
        return 32 if waves >= 3 else _FEWEST_ROWS if waves < 1 or is_long else 8
    if outputs * width < SMALL_MATRIX:
        return _most_rows_of_small(capability, outputs, width, waves)
    if capability == _TURING:
        return (64 if is_long else 128) if waves >= 3 else 64 if is_half else 32
    if capability == _AMPERE:
        return _most_rows_on_a100(outputs, width, blocks, waves, is_half=is_half)
    if capability == _SMALL_AMPERE:
        return 128 if waves >= 1 else 64 if is_half else 16
    if capability == _HOPPER:
        above = next((rows for least, rows in ((3, 64), (2, 48), (1, 32)) if waves >= least), None)
        return above or (16 if is_half and (waves >= 0.75 or not is_long) else _ROWS_WITHOUT_TENSOR_CORES)
    if waves >= 2 or (capability == _SPARK and waves >= 1):
        return 256 if waves >= 3 or capability == _SPARK else 128
    if capability == _SMALL_BLACKWELL:
        if waves >= 0.8:
            return 96 if is_long else 64
        if is_half:
            return 64 if 2 * width >= outputs and blocks >= 128 else 8
        return 16 if is_tall and blocks > 64 else 8
    if waves >= 0.8:
        if is_tall or blocks >= 200:
            return 128
        return 64 if not is_long else 128 if chip.multiprocessors >= 60 else 32
    if is_half:
        return 64 if is_tall else 8 if blocks >= 64 else 32
    if width > outputs and blocks <= 48:
        return 12 if width >= 3 * outputs else 10
    return 16 if is_tall or blocks < 48 else 8


def _most_rows_of_small(capability: tuple[int, int], outputs: int, width: int, waves: float) -> int:
    """Return `most_rows_of_four_bits` of a matrix of fewer than 2**22 values."""
    if 2 * width < outputs:
        return 320
    if capability == _AMPERE and waves <= 0.25:
        return 384 if width < outputs else 32 if waves <= 0.125 else 128
    if capability == _TURING and waves < 1:
        return 64
    if waves <= 0.25:
        return 32 if capability in (_AMPERE, _HOPPER) or width < outputs else 23
    return 16 if waves <= 0.5 else _FEWEST_ROWS


def _most_rows_on_a100(outputs: int, width: int, blocks: int, waves: float, *, is_half: bool) -> int:
    """Return `most_rows_of_four_bits` of a large matrix on an A100."""
    if waves >= 1:
        return 128 if waves >= 3 else 32 if width >= outputs else 64
    if (width >= 3 * outputs and waves > 0.25) or (width == outputs and blocks >= 48 and waves < 0.6):
        return _ROWS_WITHOUT_TENSOR_CORES
    if waves < 0.5 and width <= outputs:
        return 128
    if 0.5 > waves >= 1 / 3:
        return _ROWS_WITHOUT_TENSOR_CORES
    return 128 if is_half and width < outputs else 16
