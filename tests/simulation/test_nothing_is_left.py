"""What a simulated trial leaves in a process: functions that torch lists once must be its own."""

import subprocess
import sys
from pathlib import Path

import torch
from simulating import LORA, simulate

from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.trial import Recipe, Rollout, Tuning
from profiler.simulation.session import Simulation

_PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import functools, gc, types, torch
from simulating import simulate
simulate(steps=1, max_completion_length=4)
with torch.device("meta"):
    print(torch.tensor([]).device, torch.get_default_device())
caches = [each for each in gc.get_objects() if isinstance(each, functools._lru_cache_wrapper)]
caches = [each for each in caches if (each.__module__ or "").startswith("torch") and each.cache_info().currsize == 1]
plain = [each for each in caches if isinstance(each.__wrapped__, types.FunctionType)]
kept = [each() for each in plain if each.__wrapped__.__code__.co_argcount == 0]
kept = [list(values) for values in kept if isinstance(values, (set, dict, tuple, list))]
ours = [f for values in kept for f in values if (getattr(f, "__module__", "") or "").startswith("profiler")]
print(any(torch.tensor in values for values in kept), ours)
"""


def test_lists_of_functions_that_torch_keeps_have_its_own() -> None:
    """In a process of its own, because another test may have asked for the lists before.

    A list that was made during a simulation had the replacement of `torch.tensor`. `with torch.device("meta")` did not
    reach `torch.tensor` afterwards, so transformers took modules for initialised, and `inv_freq` was what the memory
    held before: a trial on the CPU in the same process failed now and then with NaN.
    """
    tests = str(Path(__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", _PROGRAM, tests], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-2:] == ["meta meta", "True []"]


def test_a_run_has_one_thread_and_leaves_the_number_as_it_was() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with Simulation(KNOWN_GPUS["h100-80gb"]).running():
            during = torch.get_num_threads()
        assert (during, torch.get_num_threads()) == (1, 3)
    finally:
        torch.set_num_threads(before)


_TRIALS = (
    {"tuning": Tuning.LORA, "optim": Optimizer.ADAMW_8BIT, **LORA, "lora_rank": 64},
    {"tuning": Tuning.QLORA, "optim": Optimizer.PAGED_ADAMW_8BIT, "gradient_checkpointing": True, **LORA},
    {"tuning": Tuning.LORA, "recipe": Recipe.SFT, "max_length": 32, "bf16": False, **LORA},
    {"tuning": Tuning.FULL, "optim": Optimizer.ADAMW_8BIT},
)


def test_a_trial_is_the_same_before_and_after_others() -> None:
    """bitsandbytes kept which parameters had states of 32 bits, by position: LoRA's first ones after full training."""
    order = (*range(len(_TRIALS)), *reversed(range(len(_TRIALS))))
    found: dict[int, list[object]] = {}
    for number in order:
        trace = simulate(rollout=Rollout.SYNTHETIC, ends_when_repeating=True, **_TRIALS[number]).trace
        found.setdefault(number, []).append((list(trace.sizes_bytes), list(trace.events)))
    assert [number for number, (first, second) in found.items() if first != second] == []
