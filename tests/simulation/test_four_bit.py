"""Products with 4-bit weights: read directly or widened first, by bitsandbytes' own table."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from maintenance.samples.sampling import architecture_of
from profiler.analytical.formulas.models.parameters import projections
from profiler.analytical.replayed.generation import most_rows_of_four_bits
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import Phase
from profiler.domain.trials.trial import Dtype
from profiler.seams.checked import bitsandbytes_cuda
from profiler.seams.patching import patched
from profiler.simulation.cuda.optimizers import PRODUCT, _properties
from profiler.simulation.session import Simulation

pytestmark = pytest.mark.skipif(
    not hasattr(torch.ops.bitsandbytes, PRODUCT), reason="bitsandbytes before 0.50 widens every weight"
)
A100, B200, H100 = (KNOWN_GPUS[name] for name in ("a100-80gb", "b200-180gb", "h100-80gb"))
WIDTH = 4096
WEIGHT = WIDTH * WIDTH * 2


def product(
    simulation: Simulation, rows: int, *, width: int = WIDTH, block_size: int = 64, nested: bool = False
) -> list[int]:
    """Sizes that one product of bfloat16 makes."""
    with simulation.running():
        simulation.recorder.enter(Phase.FORWARD)
        warm = torch.empty((8, 8), device="meta")
        warm @ warm
        inputs = torch.empty((rows, width), dtype=torch.bfloat16, device="meta")
        weight = torch.empty((WIDTH * width // 2, 1), dtype=torch.uint8, device="meta")
        blocks = WIDTH * width // block_size
        absmax = torch.empty(blocks // 256 if nested else blocks, device="meta")
        more = [None, None, None]
        if nested:
            more = [
                torch.empty(blocks, dtype=torch.uint8, device="meta"),
                torch.empty(256, device="meta"),
                torch.empty((), device="meta"),
            ]
        before = len(simulation.recorder.trace.sizes_bytes)
        operation = getattr(torch.ops.bitsandbytes, PRODUCT)
        result = operation(inputs, weight, [WIDTH, width], absmax, block_size, "nf4", None, *more)
        assert result.shape == (rows, WIDTH)
        return list(simulation.recorder.trace.sizes_bytes[before:])


def test_few_rows_read_the_weight_directly() -> None:
    assert product(Simulation(A100), 4) == [4 * WIDTH * 2]


def test_many_rows_widen_the_weight_first() -> None:
    assert product(Simulation(A100), 2000) == [WEIGHT, 2000 * WIDTH * 2]


def test_a_width_that_is_no_multiple_of_the_block_widens_the_weight() -> None:
    assert product(Simulation(A100), 4, width=96) == [WIDTH * 96 * 2, 4 * WIDTH * 2]


def test_nested_statistics_are_widened() -> None:
    blocks = WIDTH * WIDTH // 64
    # Statistics from 8 bits, and their sum with the offset.
    assert product(Simulation(A100), 2000, nested=True) == [blocks * 4, blocks * 4, WEIGHT, 2000 * WIDTH * 2]


def test_a_card_with_another_choice_diverges() -> None:
    """5 rows: below 8 the A100 reads 4 bits; the B200 does so only where 64 outputs each fill its 148 processors."""
    simulation = Simulation(A100, others=(B200, H100))
    assert product(simulation, 5) == [5 * WIDTH * 2]
    assert simulation.recorder.diverged == {B200.chip}
    simulation = Simulation(B200, others=(A100,))
    assert product(simulation, 5) == [WEIGHT, 5 * WIDTH * 2]
    assert simulation.recorder.diverged == {A100.chip}
    simulation = Simulation(B200, others=(A100,))
    product(simulation, 2000)
    assert simulation.recorder.diverged == set()


@settings(max_examples=10)
@given(some.integers(1, 4000), some.sampled_from(sorted(KNOWN_GPUS)))
def test_a_weight_is_widened_whole_or_not_at_all(rows: int, gpu: str) -> None:
    assert product(Simulation(KNOWN_GPUS[gpu]), rows) in ([rows * WIDTH * 2], [WEIGHT, rows * WIDTH * 2])


def test_the_closed_form_knows_the_kernels_of_few_rows() -> None:
    architectures = [architecture_of(name) for name in ("qwen2.5-0.5b", "llama-2-7b", "qwen3-14b", "gemma-3-1b")]
    parts = {
        (part.out_features, part.in_features): part
        for architecture in architectures
        for part in projections(architecture)
        if part.in_features % 64 == 0
    }
    types = {Dtype.BFLOAT16: torch.bfloat16, Dtype.FLOAT16: torch.float16, Dtype.FLOAT32: torch.float32}
    operators = bitsandbytes_cuda()
    different = []
    with patched([(operators, "_gpu_dispatch_props", _properties)]):
        for chip in {gpu.chip for gpu in KNOWN_GPUS.values()}:
            for dtype, of_torch in types.items():
                for (outputs, width), part in parts.items():
                    most = most_rows_of_four_bits(chip, part, dtype)
                    read = {
                        rows: operators._gemm_4bit_use_custom_cuda(chip, of_torch, rows, outputs, width)
                        for rows in (1, 4, 8, 16, 32, 64, 128)
                    }
                    different += [(chip, dtype, part, rows) for rows, by in read.items() if by != (rows <= most)]
    assert different == []
