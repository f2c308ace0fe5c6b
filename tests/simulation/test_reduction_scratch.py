"""Complete reductions, event by event, compared with torch's CUDA build (emulated/README.md)."""

import gzip
import json
from collections.abc import Callable, Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated.reduction_requests import points, reduce
from hypothesis import given
from hypothesis import strategies as st

from profiler.domain.cards.gpu import KNOWN_GPUS, Chip
from profiler.simulation.cuda.scratch.kernel_scratch import KERNEL_SCRATCH, more_columns_alike
from profiler.simulation.cuda.scratch.reduction_scratch import REDUCTION_SCRATCH
from profiler.simulation.device.simulated_gpu import SimulatedGpu
from profiler.simulation.tracing.recorder import Recorder

TABLE = Path(__file__).parent / "emulated" / "reductions.json.gz"
CARDS = ("NVIDIA B200", "NVIDIA H100 80GB HBM3", "NVIDIA L40S", "Tesla T4")
A100, T4 = KNOWN_GPUS["a100-80gb"].chip, KNOWN_GPUS["t4-16gb"].chip


@cache
def recorded() -> Mapping[str, Any]:
    return json.loads(gzip.decompress(TABLE.read_bytes()))


class Card:
    """A simulated card that records requests."""

    def __init__(self, chip: Chip) -> None:
        self._recorder = Recorder()
        self.gpu = SimulatedGpu(self._recorder, chip=chip, scratch=KERNEL_SCRATCH)

    def events(self, run: Callable[[], Any]) -> list[int]:
        """Bytes of each block at its allocation, and negative at its free."""
        trace = self._recorder.trace
        before = len(trace.events)
        result = run()
        found = [(1 if event > 0 else -1) * trace.sizes_bytes[abs(event) - 1] for event in trace.events[before:]]
        del result
        return found


@pytest.mark.parametrize("card", CARDS)
def test_a_reduction_allocates_what_torch_allocates(card: str) -> None:
    """Each card a quarter of the 10,036 reductions in turn; all of them were equal on all cards."""
    major, minor, multiprocessors = recorded()["chips"][card]
    simulated = Card(Chip(compute_capability=(major, minor), multiprocessors=multiprocessors))
    differing = []
    with simulated.gpu:
        asked = zip(points(), recorded()["answers"][card], strict=True)
        for point, expected in islice(asked, CARDS.index(card), None, len(CARDS)):
            values, run = reduce(point, "meta")
            found = simulated.events(run)
            if found != expected:
                differing.append((point, found, expected))
            del values, run
    assert not differing, f"{len(differing)} reductions; the first: {differing[:5]}"


def test_the_table_is_of_the_installed_torch() -> None:
    assert recorded()["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert sorted(recorded()["chips"]) == list(CARDS)


def taken(run: Callable[[torch.Tensor], Any], *shape: int, chip: Chip = A100, dtype: str = "float32") -> list[int]:
    """Scratch without the results, which are kept."""
    card = Card(chip)
    with card.gpu:
        values = torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
        found = card.events(lambda: run(values))
    given_back = [-size for size in found if size < 0]
    return sorted(given_back, reverse=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_sum_over_rows_by_hand(dtype: str) -> None:
    """A bias gradient: 4,168 rows of 896, on the 108 multiprocessors of an A100 with 2,048 threads each.

    A thread makes 4 outputs, so a block has 512 / 4 = 128 threads: 32 along the 224 groups of outputs and 4 along the
    rows, each of which sums 4,168 / 4 = 1,042 values. 224 / 32 = 7 blocks make all outputs, and 108 x 2,048 / 128 =
    1,728 run at once, so 1,728 / 7 = 247 blocks could share an output; but each thread is to sum 16 values at least:
    1,042 / 16 = 66 blocks. Each leaves a float32 for each of its threads' outputs: 896 x 66 x 32 x 4 x 4 bytes; and a
    counter for each of the 7.
    """
    assert taken(lambda x: x.sum(0), 4168, 896, dtype=dtype) == [896 * 66 * 32 * 4 * 4, 7 * 4] == [30_277_632, 28]


def test_fewer_blocks_share_an_output_on_a_smaller_card() -> None:
    # 40 multiprocessors with 1,024 threads: 320 blocks at once, 320 / 7 = 46 for an output.
    assert taken(lambda x: x.sum(0), 4168, 896, chip=T4) == [896 * 46 * 32 * 4 * 4, 7 * 4]


def test_a_sum_of_everything_by_hand() -> None:
    # 4,168 x 896 values in a row, 4 in a load: blocks of 512 threads, 108 x 4 = 432 of them, one float32 each.
    assert taken(lambda x: x.sum(), 4168, 896) == [432 * 4, 4]


def test_whether_any_value_is_true_keeps_a_byte_per_block() -> None:
    assert taken(lambda x: x.any(), 4168, 896, dtype="bool") == [432, 4]


def test_a_sum_of_whole_numbers_widens_them_first() -> None:
    assert taken(lambda x: x.sum(), 4168, 896, dtype="bool") == [4168 * 896 * 8, 432 * 8, 4]
    assert taken(lambda x: x.sum(dtype=torch.float32), 4168, 896, dtype="bfloat16") == [432 * 4, 4]
    assert taken(lambda x: x.sum(dtype=torch.float32), 4168, 896, dtype="int64") == [4168 * 896 * 4, 432 * 4, 4]


def test_the_largest_of_a_strided_tensor_reads_a_copy() -> None:
    assert taken(lambda x: x.t().max(), 64, 32) == [64 * 32 * 4]
    assert taken(lambda x: x.max(), 64, 32) == []
    assert taken(lambda x: x.t().amax(), 64, 32) == []
    assert taken(lambda x: x.t().argmax(), 64, 32) == [64 * 32 * 4]
    assert taken(lambda x: x[:, ::2].argmax(), 1, 64) == []  # flat without a copy


def test_a_reduction_of_billions_keeps_its_parts_once() -> None:
    # 17,000 x 151,936 = 2.6e9 values of 2 bytes: four launches; a float32 sum per row does not fit in its bfloat16.
    assert taken(lambda x: x.sum(-1), 17_000, 151_936, dtype="bfloat16") == [17_000 * 4]
    assert taken(lambda x: x.amax(-1), 17_000, 151_936, dtype="bfloat16") == []


def test_the_norm_over_one_value_is_its_absolute_value() -> None:
    norm = torch.linalg.vector_norm
    assert taken(lambda x: norm(x, dim=0, dtype=torch.float32), 1, 5000, dtype="bfloat16") == [5000 * 4]
    assert taken(lambda x: norm(x, dim=0), 1, 5000, dtype="bfloat16") == []


def test_an_empty_tensor_needs_no_scratch() -> None:
    assert taken(lambda x: x.sum(), 0, 4) == []


def test_every_card_has_its_own_sizes() -> None:
    recorder = Recorder()
    with SimulatedGpu(recorder, chip=A100, others=(T4,), scratch=KERNEL_SCRATCH):
        torch.empty((4168, 896), device="meta").sum(0)
    assert {block[T4] for block in recorder.trace.sizes_by_capability.values()} == {896 * 46 * 32 * 4 * 4}


def test_columns_until_a_reduction_takes_other_blocks_by_hand() -> None:
    # 512 threads take 64 x 2,040 / 512 = 255 values each, and from 256 on blocks of threads share a sum.
    mask = torch.empty((64, 256), dtype=torch.bool, device="meta")
    assert more_columns_alike(torch.ops.aten.sum.default, (mask,), A100) == 2040 - 256
    assert more_columns_alike(torch.ops.aten.sum.default, (mask[0],), A100) is None
    assert more_columns_alike(torch.ops.aten.sum.dim_IntList, (mask, [1]), A100) is None


@given(st.integers(1, 512), st.integers(1, 3000), st.sampled_from((torch.bool, torch.int64)))
def test_columns_until_a_reduction_takes_other_blocks(rows: int, columns: int, dtype: torch.dtype) -> None:
    def launches(columns: int) -> Any:
        mask = torch.empty((rows, columns), dtype=dtype, device="meta")
        return REDUCTION_SCRATCH[torch.ops.aten.sum.default]((mask,), {}, T4).launches

    mask = torch.empty((rows, columns), dtype=dtype, device="meta")
    more = more_columns_alike(torch.ops.aten.sum.default, (mask,), T4)
    if more is not None:
        assert launches(columns + more + 1) != launches(columns)
    far = 2000 if more is None else more
    assert all(launches(columns + each) == launches(columns) for each in {far * part // 20 for part in range(21)})
