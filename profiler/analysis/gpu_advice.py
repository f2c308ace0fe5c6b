"""What to do about a GPU that is almost full: the lines that apply to what is known of it."""

from collections.abc import Callable, Sequence

from profiler.domain.memory import Phase, gib_text
from profiler.domain.runs.readings import GpuState, LiveCounters

FULL_SHARE = 0.9
"""Advice is given above this share of used memory."""

MOST_LINES = 4

_IDLE_PERCENT = 5
_CACHED_SHARE = 0.2
"""Reserved memory without tensors that is worth a line, as a share of the card."""

_BY_PHASE = {
    Phase.ROLLOUT: "a smaller num_generations, max_completion_length or generation_batch_size shrinks the KV cache",
    Phase.SCORE: "a smaller per_device_train_batch_size shrinks the log-probabilities",
    Phase.FORWARD: "half of per_device_train_batch_size with twice gradient_accumulation_steps shrinks activations "
    "and logits",
    Phase.BACKWARD: "half of per_device_train_batch_size with twice gradient_accumulation_steps shrinks activations "
    "and logits",
    Phase.EVALUATION: "a smaller per_device_eval_batch_size shrinks the logits of an evaluation",
    Phase.OPTIMIZER: "optim=adamw_8bit or LoRA shrinks the states of the optimizer",
}


def gpu_advice(gpu: GpuState) -> tuple[str, ...]:
    """Return at most `MOST_LINES` lines, the most urgent first; none for a GPU with at most `FULL_SHARE` in use."""
    if gpu.used_share is None or gpu.used_share <= FULL_SHARE:
        return ()
    found = [line for rule in _RULES for line in rule(gpu)]
    return tuple(found[:MOST_LINES])


def _profiled(gpu: GpuState) -> Sequence[LiveCounters]:
    return [one.counters for one in gpu.processes if one.counters is not None]


def _failed(gpu: GpuState) -> list[str]:
    return [
        f"{one.what} (process {one.pid}) ran out of memory {_times(one.out_of_memory)}: python -m profiler.solve finds "
        "the largest setting that fits."
        for one in _profiled(gpu)
        if one.out_of_memory
    ]


def _retried(gpu: GpuState) -> list[str]:
    return [
        f"The allocator of {one.what} (process {one.pid}) released its cache and tried again "
        f"{_times(one.alloc_retries)}, which costs time: the next growth does not fit."
        for one in _profiled(gpu)
        if one.alloc_retries and not one.out_of_memory
    ]


def _shared(gpu: GpuState) -> list[str]:
    if len(gpu.processes) < 2 or gpu.utilisation_percent is None:
        return []
    others = [one for one in gpu.processes if one.counters is None and one.used_bytes]
    if len(others) == len(gpu.processes):
        others = others[1:]
    held = sum(one.used_bytes or 0 for one in others)
    if not held:
        return []
    names = ", ".join(str(one.pid) for one in others[:3])
    idle = ", and no kernel runs" if gpu.utilisation_percent < _IDLE_PERCENT else ""
    return [f"Other processes ({names}) hold {gib_text(held)}{idle}: end those that are not needed."]


def _cached(gpu: GpuState) -> list[str]:
    return [
        f"{one.what} (process {one.pid}) holds {gib_text(one.reserved_bytes - one.allocated_bytes)} that no tensor "
        "uses: PYTORCH_ALLOC_CONF=expandable_segments:True keeps less."
        for one in _profiled(gpu)
        if one.reserved_bytes - one.allocated_bytes > _CACHED_SHARE * gpu.total_bytes
    ]


def _by_phase(gpu: GpuState) -> list[str]:
    known = [(one, _BY_PHASE[one.phase]) for one in _profiled(gpu) if one.phase in _BY_PHASE]
    return [f"{one.what} (process {one.pid}) is in its {one.phase} phase: {advice}." for one, advice in known]


def _unknown(gpu: GpuState) -> list[str]:
    if _profiled(gpu):
        return []
    return ["VramCallback or python -m profiler.run shows which phase of a training needs it (docs/monitor.md)."]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


_RULES: tuple[Callable[[GpuState], list[str]], ...] = (_failed, _retried, _shared, _cached, _by_phase, _unknown)
