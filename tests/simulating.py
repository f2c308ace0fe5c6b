"""A trial on the simulated GPU, in this process, for tests that look at its trace."""

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiler.allocator import Trace
from profiler.domain.builtin_models import BUILTIN_MODELS
from profiler.domain.gpu import KNOWN_GPUS
from profiler.domain.memory import Category, Phase
from profiler.domain.trial import Backend, TrialSpec
from profiler.simulation.device.cpu_choices import Choices
from profiler.simulation.extrapolation.decode_extrapolator import DecodeExtrapolator
from profiler.simulation.extrapolation.repeated_steps import RepeatedSteps
from profiler.simulation.session import Simulation
from profiler.training.job import build_trainer

SMALL: dict[str, Any] = {"model": "tiny", "max_prompt_length": 8, "max_completion_length": 12, "steps": 2}
LORA: dict[str, Any] = {"lora_rank": 8, "lora_alpha": 16, "lora_target_modules": ("all-linear",)}


def small_spec(**keys: Any) -> TrialSpec:
    """A simulated trial of seconds."""
    defaults: dict[str, Any] = {"backend": Backend.SIMULATED, "gpu": "h100-80gb"}
    return TrialSpec(**(defaults | SMALL | keys))


@dataclass(frozen=True, kw_only=True)
class Simulated:
    trace: Trace
    trainer: Any
    decoding: DecodeExtrapolator

    def levels(self) -> Iterator[tuple[Phase, dict[Category, int]]]:
        """Bytes by category after each event, with its phase; rounded as the allocator rounds."""
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
        """Bytes by category that are still in use when training is over."""
        *_, (_, level) = self.levels()
        return {category: size for category, size in level.items() if size}


def simulate(
    *,
    shortcut_rollout: bool = True,
    every_block: bool = False,
    ends_when_repeating: bool = False,
    choices: Choices = Choices.CUDA,
    model_config: Mapping[str, Any] | None = None,
    **keys: Any,
) -> Simulated:
    """A simulated trial; `model_config` in place of the built-in model of the specification.

    With `every_block` the rollout's shortcut tells each block, as the long way does. With `ends_when_repeating` steps
    that repeat are told, as in a sweep.
    """
    spec = small_spec(**keys)
    simulation = Simulation(KNOWN_GPUS[str(spec.gpu)], choices=choices)
    simulation.decoding.every_block = every_block
    with tempfile.TemporaryDirectory() as folder, simulation.running():
        trainer = build_trainer(
            spec,
            model_config=model_config or BUILTIN_MODELS[spec.model].config,
            placement=simulation,
            observer=simulation,
            output_dir=Path(folder),
            arguments_ready=simulation.adopt,
            shortcut_rollout=shortcut_rollout,
        )
        simulation.trainer_ready(trainer)
        if ends_when_repeating:
            trainer.add_callback(RepeatedSteps(simulation.recorder))
        trainer.train()
        simulation.trainer_done(trainer)
    return Simulated(trace=simulation.recorder.finished(), trainer=trainer, decoding=simulation.decoding)
