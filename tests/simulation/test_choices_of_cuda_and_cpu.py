"""Differences between CUDA and the CPU in one small trial (autocast to bfloat16), each with its bytes.

At the peak of training, which is in the backward of trl's LM head, the card has, against the CPU:

| bytes | what | why |
|---:|---|---|
| + 67,108,864 | workspace | cuBLAS keeps 32 MiB for the thread that runs forward and for the one that runs backward |
| - 43,122,688 | LM head | without Triton a tile of logits becomes seven float32 tensors of its size |
| - 1,540,096 | LM head | and one of bool, that marks the targets |
| - 9,204,048 | LM head | on a card only the positions of completions are scored: 50 of 188 |
| about - 0.1 MB | activations | the attention kernels keep other things; on a card the scored positions are copied |

The test prints the list in full, by category and operation: `pytest -s`, this file.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cache

from measured_on_cpu import HIDDEN, MODEL, TRIAL, VOCABULARY
from simulating import simulate

from profiler.allocator import Trace
from profiler.domain.memory import MIB, Category, Phase
from profiler.simulation.device.cpu_choices import Choices

KEYS = TRIAL | {"bf16": True}
TRAINING = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)


@cache
def trace_of(choices: Choices) -> Trace:
    return simulate(model_config=MODEL, choices=choices, shortcut_rollout=False, **KEYS).trace


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The highest instant of the training steps: requested bytes by category and operation."""

    phase: Phase
    parts: Counter[tuple[Category, str]]

    @property
    def size_bytes(self) -> int:
        return self.parts.total()


def peak_of(trace: Trace) -> Peak:
    starts, phase = dict(trace.phase_starts), Phase.LOAD
    live: set[int] = set()
    level, highest, at_peak, phase_at_peak = 0, 0, set(live), phase
    for index, event in enumerate(trace.events):
        phase, block = starts.get(index, phase), abs(event) - 1
        level += trace.sizes_bytes[block] if event > 0 else -trace.sizes_bytes[block]
        (live.add if event > 0 else live.discard)(block)
        if level > highest and phase in TRAINING:
            highest, at_peak, phase_at_peak = level, set(live), phase
    parts: Counter[tuple[Category, str]] = Counter()
    for block in at_peak:
        operation = trace.sites[trace.site_of[block]].operation
        parts[trace.categories[block], operation] += trace.sizes_bytes[block]
    return Peak(phase=phase_at_peak, parts=parts)


def differences(cuda: Peak, cpu: Peak) -> Counter[tuple[Category, str]]:
    """Bytes by category and operation that CUDA's peak has more (less: negative) than the CPU's; sums to the whole."""
    found = Counter(cuda.parts)
    found.subtract(cpu.parts)
    return Counter({key: size for key, size in found.items() if size})


def at_both_peaks() -> tuple[Peak, Peak]:
    return peak_of(trace_of(Choices.CUDA)), peak_of(trace_of(Choices.CPU))


def test_the_differences_are_the_whole_difference() -> None:
    cuda, cpu = at_both_peaks()
    found = differences(cuda, cpu)
    print()
    for (category, operation), size in sorted(found.items(), key=lambda item: -abs(item[1])):
        print(f"{size:>+14,}  {category:<12} {operation}")
    assert found.total() == cuda.size_bytes - cpu.size_bytes
    assert cuda.phase is cpu.phase is Phase.BACKWARD


def test_weights_gradients_and_states_are_the_same() -> None:
    persistent = (Category.WEIGHTS, Category.GRADIENTS, Category.OPTIMIZER_STATE)
    assert not [key for key in differences(*at_both_peaks()) if key[0] in persistent]


def test_cublas_keeps_two_workspaces() -> None:
    found = differences(*at_both_peaks())
    assert sum(size for (category, _), size in found.items() if category is Category.WORKSPACE) == 2 * 32 * MIB


def test_the_lm_head_without_triton_takes_float32_tiles_of_every_position() -> None:
    positions = 4 * (32 + 16 - 1)
    scored = 50  # trl shuffles the completions of 16, 14, 12 and 10 tokens over the micro-batches
    assert scored * HIDDEN * 2 in trace_of(Choices.CUDA).sizes_bytes
    tiles = positions * VOCABULARY * (7 * 4 + 1)
    chunk = 32_768  # trl's width of a tile of logits
    a_position = chunk * 2 + HIDDEN * (4 + 2) + 2 * 4  # tile, hidden state's gradient and cast, two statistics
    found = differences(*at_both_peaks())
    head = sum(size for (category, _), size in found.items() if category is Category.LOGITS)
    assert head == -(tiles + (positions - scored) * a_position)


def test_all_other_differences_are_small() -> None:
    named = (Category.WORKSPACE, Category.LOGITS)
    rest = sum(size for (category, _), size in differences(*at_both_peaks()).items() if category not in named)
    assert abs(rest) < 0.005 * at_both_peaks()[1].size_bytes
