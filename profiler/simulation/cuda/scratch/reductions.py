"""Scratch of CUDA's reductions (sum, mean, max, norm, ...), in bytes.

If few outputs are computed from many inputs, several blocks of threads share one output. Each writes its part into a
buffer, and a counter identifies the last block. Both come from the caching allocator and are freed at once.

Source: `ReduceConfig`, `setReduceConfig` and `gpu_reduce_kernel` in `aten/src/ATen/native/cuda/Reduce.cuh`, and
`TensorIteratorBase` (`reorder_dimensions`, `coalesce_dimensions`) in `aten/src/ATen/TensorIterator.cpp`, torch 2.13.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from profiler.domain.cards.gpu import Chip

_MOST_THREADS = 512
_WARP = 32
_FEWEST_VALUES_PER_THREAD = 16
_MOST_VALUES_PER_THREAD = 256
_FEWEST_TO_VECTORIZE = 128
_WIDEST_OUTPUT_VECTOR = 4
_COUNTER_BYTES = 4
_LARGEST_INDEX = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """One dimension of a reduction. Strides are in bytes; that of the output is 0 where it is reduced."""

    size: int
    input_stride: int
    output_stride: int

    @property
    def is_reduced(self) -> bool:
        """Whether the output lacks it."""
        return self.output_stride == 0


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """A reduction of one tensor."""

    dimensions: tuple[Dimension, ...]
    """In the order of the iterator: reduced ones first, each group from fastest to slowest; none of size 1."""
    value_bytes: int
    """Of an input."""
    part_bytes: int
    """Bytes of a thread's part: a float32 for sums of half precision, a pair with an index for `argmax`."""
    output_bytes: int
    """Of an output."""
    vector: int
    """Inputs that a thread loads at once if they are contiguous."""
    keeps_parts_in_output: bool
    """Whether a reduction that is split can keep its parts in the output."""
    offset: int = 0
    """Of the first input in its storage, in inputs."""


def reduction(
    shape: Sequence[int],
    strides: Sequence[int],
    reduced: Sequence[int],
    *,
    value_bytes: int,
    part_bytes: int,
    output_bytes: int,
    vector: int = 4,
    keeps_parts_in_output: bool = True,
    offset: int = 0,
) -> Reduction:
    """Describe the reduction of a tensor over dimensions.

    Args:
        shape: Of the tensor.
        strides: Of the tensor, in values.
        reduced: The dimensions that are reduced, from 0; all of them for a scalar.
        value_bytes: Bytes of one value.
        part_bytes: Bytes of a thread's part.
        output_bytes: Bytes of one output.
        vector: Values that a thread loads at once.
        keeps_parts_in_output: False for 16-bit outputs of 16-bit values, and if a part is not a plain number.
        offset: Of the tensor in its storage, in values.
    """
    found, outer = [], output_bytes
    for number in reversed(range(len(shape))):
        size, is_reduced = shape[number], number in reduced
        stride = strides[number] * value_bytes
        found.append(Dimension(size=size, input_stride=stride, output_stride=0 if is_reduced else outer))
        outer *= 1 if is_reduced else size
    return Reduction(
        dimensions=_coalesced(_ordered(found)),
        value_bytes=value_bytes,
        part_bytes=part_bytes,
        output_bytes=output_bytes,
        vector=vector,
        keeps_parts_in_output=keeps_parts_in_output,
        offset=offset,
    )


def _ordered(dimensions: Sequence[Dimension]) -> Sequence[Dimension]:
    """Sort dimensions, given from the last to the first, by insertion (`reorder_dimensions`).

    Some pairs have no order, so the result depends on the algorithm.
    """
    found = list(dimensions)
    for number in range(1, len(found)):
        inserted = number
        for other in reversed(range(number)):
            order = _order(found[other], found[inserted])
            if order < 0:
                break
            if order > 0:
                found[other], found[inserted] = found[inserted], found[other]
                inserted = other
    return found


def _order(one: Dimension, other: Dimension) -> int:
    """Return 1 if `one` comes after `other`, -1 if before, 0 if neither (`should_swap` in `reorder_dimensions`)."""
    if one.is_reduced != other.is_reduced:
        return 1 if other.is_reduced else -1
    for stride, other_stride in ((one.output_stride, other.output_stride), (one.input_stride, other.input_stride)):
        if stride == 0 or other_stride == 0:
            continue
        if stride != other_stride:
            return 1 if stride > other_stride else -1
        if one.size > other.size:
            return 1
    return 0


def _coalesced(dimensions: Sequence[Dimension]) -> tuple[Dimension, ...]:
    """Merge neighbours that are contiguous in input and output into one dimension (`coalesce_dimensions`)."""
    merged: list[Dimension] = []
    for one in dimensions:
        if one.size == 1:
            continue
        last = merged[-1] if merged else None
        if (
            last is not None
            and last.size * last.input_stride == one.input_stride
            and last.size * last.output_stride == one.output_stride
        ):
            merged[-1] = replace(last, size=last.size * one.size)
        else:
            merged.append(one)
    return tuple(merged)


def scratch_bytes(asked: Reduction, chip: Chip) -> tuple[tuple[int, int], ...]:
    """Return (buffer, counters) in bytes of each launch in order; (0, 0) if blocks do not share an output."""
    return tuple(_launch(part, chip) for part in _with_32_bit_indices(asked))


def accumulator_bytes(asked: Reduction) -> int:
    """Return the buffer for parts of a reduction with indices beyond 32 bits; 0 if the output can hold them."""
    if asked.keeps_parts_in_output or _fits(asked):
        return 0
    span = max((one.size * one.output_stride for one in asked.dimensions), default=0)
    return max(1, span // asked.output_bytes) * asked.part_bytes


def _with_32_bit_indices(asked: Reduction) -> Iterator[Reduction]:
    """Halve the reduction along its longest dimension until every index fits into 32 bits (`with_32bit_indexing`)."""
    if _fits(asked):
        yield asked
        return
    longest = max(
        range(len(asked.dimensions)),
        key=lambda n: (
            (asked.dimensions[n].size - 1) * max(asked.dimensions[n].input_stride, asked.dimensions[n].output_stride)
        ),
    )
    size = asked.dimensions[longest].size
    for part in (size // 2, size - size // 2):
        dimensions = list(asked.dimensions)
        dimensions[longest] = replace(dimensions[longest], size=part)
        yield from _with_32_bit_indices(replace(asked, dimensions=tuple(dimensions)))


def _fits(asked: Reduction) -> bool:
    last = [
        1 + sum((one.size - 1) * stride(one) for one in asked.dimensions)
        for stride in (lambda one: one.input_stride, lambda one: one.output_stride)
    ]
    return prod(one.size for one in asked.dimensions) <= _LARGEST_INDEX and max(last) <= _LARGEST_INDEX


def _launch(asked: Reduction, chip: Chip) -> tuple[int, int]:
    if not asked.dimensions:
        return 0, 0
    reduced = [one for one in asked.dimensions if one.is_reduced]
    kept = [one for one in asked.dimensions if not one.is_reduced]
    inputs, outputs = prod(one.size for one in reduced), prod(one.size for one in kept)
    along_input = not kept or (bool(reduced) and reduced[0].input_stride < kept[0].input_stride)
    fastest = asked.dimensions[0] if along_input else kept[0]
    width, height = (inputs, outputs) if along_input else (outputs, inputs)
    vector = 1
    if fastest.input_stride == asked.value_bytes:
        if along_input and width >= _FEWEST_TO_VECTORIZE and len(reduced) == 1:
            width //= asked.vector
        elif not along_input:
            vector = _output_vector(asked, kept[0])
            width //= vector
    block_width, block_height = _block(width, height, _MOST_THREADS // vector)
    step_input, step_output = (block_width, 1) if along_input else (1, block_width)
    values = -(-inputs // step_input)
    splits_block = values >= min(block_height * 16, _MOST_VALUES_PER_THREAD)
    if splits_block:
        step_input *= block_height
    else:
        step_output *= block_height
    values = -(-inputs // step_input)
    grid = -(-(outputs // vector) // step_output)
    most_blocks = chip.multiprocessors * (chip.threads_per_multiprocessor // (block_width * block_height))
    if not splits_block or values < _MOST_VALUES_PER_THREAD or grid > most_blocks:
        return 0, 0
    wanted = min(-(-most_blocks // grid), -(-values // _FEWEST_VALUES_PER_THREAD))
    blocks = max(wanted, -(-values // _MOST_VALUES_PER_THREAD))
    if blocks <= 1:
        return 0, 0
    parts = outputs * blocks * (1 if along_input else block_width * vector)
    return parts * asked.part_bytes, grid * _COUNTER_BYTES


def _block(width: int, height: int, most_threads: int) -> tuple[int, int]:
    """Return the threads of a block along width and height (`set_block_dimension`)."""
    widest, highest = (_power_of_two(size) if size < most_threads else most_threads for size in (width, height))
    block_width = min(widest, _WARP)
    block_height = min(highest, most_threads // block_width)
    return min(widest, most_threads // block_height), block_height


def _output_vector(asked: Reduction, fastest: Dimension) -> int:
    """Return the outputs of one thread: at most 4, and a divisor of offset and strides (`get_output_vec_size`)."""
    others = [one.input_stride // asked.value_bytes for one in asked.dimensions if one is not fastest]
    vector = _WIDEST_OUTPUT_VECTOR
    for number in (asked.offset, fastest.size, *others):
        while number % vector:
            vector //= 2
    return vector


def _power_of_two(number: int) -> int:
    """Return the largest power of two up to `number`; 1 for 0."""
    return 1 << max(0, number.bit_length() - 1)
