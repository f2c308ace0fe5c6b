"""The shape of a reduction as torch's iterator sees it, and the launches that follow from it."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as some

from profiler.domain.cards.gpu import KNOWN_GPUS, Chip
from profiler.simulation.cuda.scratch.reductions import (
    Dimension,
    Reduction,
    accumulator_bytes,
    reduction,
    scratch_bytes,
)

A100 = KNOWN_GPUS["a100-80gb"].chip


def contiguous(*shape: int) -> list[int]:
    return [prod(shape[place + 1 :]) for place in range(len(shape))]


def float32(shape: tuple[int, ...], reduced: tuple[int, ...], strides: list[int] | None = None) -> Reduction:
    return reduction(
        shape, strides or contiguous(*shape), reduced, value_bytes=4, part_bytes=4, output_bytes=4
    )  # fmt: skip


def sizes(asked: Reduction) -> list[tuple[int, int, int]]:
    return [(one.size, one.input_stride, one.output_stride) for one in asked.dimensions]


def test_reduced_dimensions_come_first_and_contiguous_ones_are_merged() -> None:
    assert sizes(float32((2, 3, 5), (0, 1, 2))) == [(30, 4, 0)]
    assert sizes(float32((2, 3, 5), (2,))) == [(5, 4, 0), (6, 20, 4)]
    assert sizes(float32((2, 3, 5), (1,))) == [(3, 20, 0), (5, 4, 4), (2, 60, 20)]
    assert sizes(float32((1, 7), (0,))) == [(7, 4, 4)]
    assert sizes(float32((7, 1), (0,))) == [(7, 4, 0)]
    assert sizes(float32((1, 1), (0,))) == []


def test_a_broadcast_dimension_stays_where_it_was() -> None:
    # [3, 4168, 896] of which the first has stride 0: the rows come before it, so that they are the fastest.
    assert sizes(float32((3, 4168, 896), (0, 1), [0, 896, 1])) == [(4168, 896 * 4, 0), (3, 0, 0), (896, 4, 4)]


def test_by_hand() -> None:
    # 2 rows of 3 million: a block has 256 threads along the row for each of two halves of it, and reads 512 values at
    # a time: 5,860 for a thread. 108 x 2,048 / 512 = 432 blocks run at once, 216 for each row; with 16 values for a
    # thread there could be 367. Each of the 216 leaves a float32 for its row.
    asked = float32((2, 3_000_000), (1,))
    assert sizes(asked) == [(3_000_000, 4, 0), (2, 12_000_000, 4)]
    assert scratch_bytes(asked, A100) == ((2 * 216 * 4, 2 * 4),)


def test_few_values_per_output_are_not_shared() -> None:
    assert scratch_bytes(float32((4168, 64), (1,)), A100) == ((0, 0),)
    assert scratch_bytes(float32((64, 4168), (0,)), A100) == ((0, 0),)


def test_indices_beyond_32_bits_are_halved_until_they_fit() -> None:
    shape = (17_000, 151_936)
    asked = reduction(shape, contiguous(*shape), (1,), value_bytes=2, part_bytes=4, output_bytes=2)
    assert len(scratch_bytes(asked, A100)) == 4
    assert accumulator_bytes(asked) == 0
    with_pairs = reduction(
        shape, contiguous(*shape), (1,), value_bytes=2, part_bytes=16, output_bytes=8, keeps_parts_in_output=False
    )
    assert accumulator_bytes(with_pairs) == 17_000 * 16
    small = reduction((4, 4), (4, 1), (1,), value_bytes=2, part_bytes=16, output_bytes=8, keeps_parts_in_output=False)
    assert accumulator_bytes(small) == 0


def test_dimensions_of_the_same_stride_go_by_their_size() -> None:
    assert sizes(float32((2, 3), (0, 1), [1, 1])) == [(2, 4, 0), (3, 4, 0)]


@pytest.mark.parametrize(
    ("offset", "buffer", "counters"),
    [
        # 4 outputs for a thread: blocks of 16 by 8; 12,500 values, so 782 blocks.
        (0, 64 * 782 * 16 * 4 * 4, 4),
        (4, 64 * 782 * 16 * 4 * 4, 4),
        # 2 outputs: 32 by 8.
        (2, 64 * 782 * 32 * 2 * 4, 4),
        # 1 output: 32 by 16, and two of these for the 64 outputs; 432 of them run at once, 216 for each.
        (1, 64 * 216 * 32 * 4, 8),
    ],
)
def test_outputs_of_one_thread_are_aligned(offset: int, buffer: int, counters: int) -> None:
    shape = (100_000, 64)
    asked = reduction(shape, contiguous(*shape), (0,), value_bytes=4, part_bytes=4, output_bytes=4, offset=offset)
    assert scratch_bytes(asked, A100) == ((buffer, counters),)


shapes = some.lists(some.integers(1, 300), min_size=1, max_size=4).map(tuple)


@given(shapes, some.data())
def test_the_dimensions_hold_every_value_and_every_output_once(shape: tuple[int, ...], data: some.DataObject) -> None:
    reduced = tuple(data.draw(some.sets(some.integers(0, len(shape) - 1))))
    order = data.draw(some.permutations(range(len(shape))))
    strides = [0] * len(shape)
    step = 1
    for place in order:
        strides[place], step = step, step * shape[place]
    asked = float32(shape, reduced, strides)
    assert prod(one.size for one in asked.dimensions) == prod(shape)
    kept = prod(size for place, size in enumerate(shape) if place not in reduced)
    assert prod(one.size for one in asked.dimensions if not one.is_reduced) == kept
    assert [one.is_reduced for one in asked.dimensions] == sorted(one.is_reduced for one in asked.dimensions)[::-1]


@given(some.integers(1, 1 << 24), some.integers(1, 5000), some.sampled_from(sorted(KNOWN_GPUS)), some.booleans())
def test_parts_and_counters_of_a_matrix(inputs: int, outputs: int, gpu: str, over_rows: bool) -> None:
    chip = KNOWN_GPUS[gpu].chip
    shape, reduced = ((inputs, outputs), (0,)) if over_rows else ((outputs, inputs), (1,))
    for buffer, counters in scratch_bytes(float32(shape, reduced), chip):
        assert (buffer == 0) == (counters == 0)
        assert buffer % 4 == 0
        # As many blocks at once as the card runs bound the parts, unless a thread would sum more than 256 values.
        at_once = chip.multiprocessors * chip.threads_per_multiprocessor
        assert buffer <= 2 * 4 * 128 * max(outputs * -(-inputs // 256), at_once + outputs * 128)


@given(some.integers(1, 1 << 20), some.integers(1, 200))
def test_more_multiprocessors_never_need_less(inputs: int, outputs: int) -> None:
    asked = float32((inputs, outputs), (0,))
    found = [
        scratch_bytes(asked, Chip(compute_capability=(9, 0), multiprocessors=count))[0][0] for count in (40, 80, 132)
    ]
    assert found == sorted(found)


def test_a_dimension_is_reduced_if_the_output_has_no_stride_there() -> None:
    assert Dimension(size=4, input_stride=4, output_stride=0).is_reduced
    assert not Dimension(size=4, input_stride=4, output_stride=4).is_reduced
