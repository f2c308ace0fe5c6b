"""Memory of a step of each optimizer in addition to parameters, gradients and states, computed by hand.

Two bfloat16 parameters of 1,024 x 1,024 and 512 x 1,024: 2 MiB and 1 MiB, and the same for gradients and states.
"""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from simulating import simulate
from torch import nn
from transformers.optimization import Adafactor

from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import MIB, Phase
from profiler.domain.trials.optimizers import Kernels, Optimizer
from profiler.domain.trials.trial import Tuning
from profiler.simulation.cuda.optimizers import PATCHES
from profiler.simulation.session import Simulation

TRAINABLE = 3 * MIB


def peak_of_second_step(make: Callable[[Iterable[nn.Parameter]], Any]) -> int:
    """Return the peak of the second step in bytes, including parameters, gradients and states."""
    simulation = Simulation(KNOWN_GPUS["a100-40gb"])
    with simulation.running():
        simulation.recorder.enter(Phase.OPTIMIZER)
        parameters = [
            nn.Parameter(torch.empty(shape, dtype=torch.bfloat16, device="meta"))
            for shape in ((1024, 1024), (512, 1024))
        ]
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        optimizer = make(parameters)
        optimizer.step()
        first = len(simulation.recorder.finished().events)
        optimizer.step()
        trace = simulation.recorder.finished()
    level = peak = 0
    for index, event in enumerate(trace.events):
        # Step counters and hyperparameters, of 4 bytes each, are left out.
        size = trace.sizes_bytes[abs(event) - 1] if trace.sizes_bytes[abs(event) - 1] >= 2048 else 0
        level += size if event > 0 else -size
        peak = max(peak, level) if index >= first - 1 else peak
    return peak


@pytest.mark.parametrize(
    ("make", "peak"),
    [
        # Parameters, gradients and two states; the kernel works in place.
        (lambda values: torch.optim.AdamW(values, fused=True), 4 * TRAINABLE),
        # Also the square roots of all second states at once (`_foreach_sqrt`).
        (lambda values: torch.optim.AdamW(values), 5 * TRAINABLE),
        # One parameter at a time: the square root of the largest, and its quotient by the bias correction.
        (lambda values: torch.optim.AdamW(values, foreach=False), 4 * TRAINABLE + 2 * 2 * MIB),
        # Without momentum there is no state, and the update is in place.
        (lambda values: torch.optim.SGD(values, lr=0.1), 2 * TRAINABLE),
        # With weight decay, there are decayed gradients of all parameters.
        (lambda values: torch.optim.SGD(values, lr=0.1, weight_decay=0.1), 3 * TRAINABLE),
    ],
)
def test_the_peak_of_a_step(make: Callable[[Iterable[nn.Parameter]], Any], peak: int) -> None:
    assert peak_of_second_step(make) == peak


def test_adafactor_works_in_float32_one_parameter_at_a_time() -> None:
    """The largest parameter has 4 MiB in float32: the parameter, the gradient, its square plus a constant.

    In addition, the mean of the squares over rows: 16 blocks share each of 1,024 columns, of 32 threads with 4 columns
    each, and torch keeps a float32 per column of each thread (`global_memory_size` in `Reduce.cuh`).
    """
    rows_and_columns = (1024 + 1024) * 4 + (512 + 1024) * 4
    means_of_columns = 1024 * 4
    parts = 1024 * 16 * 32 * 4 * 4
    scratch = peak_of_second_step(lambda values: Adafactor(values)) - 2 * TRAINABLE - rows_and_columns
    assert scratch == 3 * 4 * MIB + means_of_columns + parts


def test_every_library_of_kernels_is_patched() -> None:
    assert set(PATCHES) == set(Kernels) == {optim.traits.kernels for optim in Optimizer}


@pytest.mark.parametrize(
    ("optim", "rank", "fails"),
    [(Optimizer.RMSPROP_32BIT, 64, True), (Optimizer.RMSPROP_8BIT, 32, True), (Optimizer.RMSPROP_8BIT, 64, False)],
)
def test_rmsprop_updates_bfloat16_in_8_bits_only(optim: Optimizer, rank: int, fails: bool) -> None:
    """Adapters of rank 64 on a layer of 64 have 4,096 values, the fewest with states in 8 bits."""
    adapters = {"lora_rank": rank, "lora_alpha": 16, "lora_target_modules": ("q_proj",)}
    expected = pytest.raises(ValueError, match=r"no kernel of rmsprop for gradients in bfloat16")
    with expected if fails else nullcontext():
        simulate(tuning=Tuning.QLORA, optim=optim, **adapters)
