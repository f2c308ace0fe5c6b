"""Simulated trials in this process, for tests that inspect the trace."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from profiler.allocator import Trace
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import Category, Phase
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.runs.step_shape import PhaseWork
from profiler.domain.trials.trial import Backend, TrialSpec
from profiler.simulation.device.cpu_choices import Choices
from profiler.simulation.extrapolation.decode_extrapolator import DecodeExtrapolator
from profiler.simulation.session import Extrapolation, Simulation
from profiler.training.run import run_training

SMALL: dict[str, Any] = {
    "model": "tiny", "max_prompt_length": 8, "max_completion_length": 12, "steps": 2,
    "gradient_accumulation_steps": 2, "steps_per_generation": 2,
}  # fmt: skip
"""A first and a last micro-batch, in a first and in a later step. Two more between them take twice the time."""
FOUR_MICRO_BATCHES: dict[str, Any] = {"gradient_accumulation_steps": 4, "steps_per_generation": 4}
"""The defaults of a trial."""
LORA: dict[str, Any] = {"lora_rank": 8, "lora_alpha": 16, "lora_target_modules": ("all-linear",)}


def small_spec(**keys: Any) -> TrialSpec:
    """Return a simulated trial that takes seconds."""
    defaults: dict[str, Any] = {"backend": Backend.SIMULATED, "gpu": "h100-80gb"}
    return TrialSpec(**(defaults | SMALL | keys))


@dataclass(frozen=True, kw_only=True)
class Simulated:
    trace: Trace
    trainer: Any
    decoding: DecodeExtrapolator
    work: tuple[PhaseWork, ...]

    def levels(self) -> Iterator[tuple[Phase, dict[Category, int]]]:
        """Yield phase and bytes by category after each event, rounded as the allocator rounds."""
        starts = dict(self.trace.phase_starts)
        phase = Phase.LOAD
        level: dict[Category, int] = defaultdict(int)
        for index, event in enumerate(self.trace.events):
            phase = starts.get(index, phase)
            block = abs(event) - 1
            size = -(-self.trace.sizes_bytes[block] // 512) * 512
            level[self.trace.categories[block]] += size if event > 0 else -size
            yield phase, level

    def left_at_the_end(self) -> dict[Category, int]:
        """Return the bytes by category that are in use when training is over."""
        *_, (_, level) = self.levels()
        return {category: size for category, size in level.items() if size}


def simulate(
    *,
    shortcut_rollout: bool = True,
    every_block: bool = False,
    ends_when_repeating: bool = False,
    choices: Choices = Choices.CUDA,
    counts: bool = False,
    model_config: Mapping[str, Any] | None = None,
    **keys: Any,
) -> Simulated:
    """Simulate a trial in this process.

    Args:
        shortcut_rollout: Extrapolate decoding steps.
        every_block: Keep every block of extrapolated decoding steps.
        ends_when_repeating: Extrapolate optimizer steps that repeat, as a sweep does.
        choices: The device whose kernels are chosen.
        counts: Count the work of the steps.
        model_config: In place of the built-in model of the specification.
        keys: Of the specification, in place of those of `SMALL`.
    """
    spec = small_spec(**keys)
    extrapolation = Extrapolation(decoding=shortcut_rollout, steps=ends_when_repeating, every_block=every_block)
    simulation = Simulation(
        KNOWN_GPUS[str(spec.gpu)],
        choices=choices,
        extrapolation=extrapolation,
        offloads=spec.activation_offloading,
        counts=counts,
    )
    trained = run_training(spec, model_config or BUILTIN_MODELS[spec.model].config, simulation)
    return Simulated(
        trace=simulation.recorder.finished(),
        trainer=trained.trainer,
        decoding=simulation.decoding,
        work=() if simulation.recorder.work is None else simulation.recorder.work.last_step(),
    )
