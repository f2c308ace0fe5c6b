"""A trial on a GPU that is not there: training and simulation brought together, and one run seen by many cards."""

import tempfile
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiler.allocator import AllocatorConfig, CardReplay, Trace, parse_alloc_conf, replay_on_card
from profiler.allocator.largest import largest_groups
from profiler.allocator.snapshot import memory_snapshot
from profiler.allocator.step_shape import step_shape
from profiler.domain.context import cuda_context_bytes
from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.gpu import KNOWN_GPUS, Chip, Gpu
from profiler.domain.memory import Phase
from profiler.domain.outcome import CategoryShare, Outcome, OutOfMemory, PhasePeak, Status, StepInstant
from profiler.domain.trial import TrialSpec
from profiler.domain.units import gib_text
from profiler.simulation.extrapolation.repeated_steps import RepeatedSteps
from profiler.simulation.session import Simulation
from profiler.training.job import build_trainer
from profiler.training.sizes import parameter_counts

_SNAPSHOT_ENTRIES = 100_000
"""Entries of history in a snapshot: the last optimizer steps, in a file that a browser can open."""


@dataclass(frozen=True, kw_only=True)
class SimulatedRun:
    """One run of the real trainer: what it allocated and freed, on a card of any size."""

    trace: Trace
    parameters: int
    trainable_parameters: int
    micro_batches_run: int
    steps_run: int
    chips: frozenset[Chip]
    """Chips of the cards that it answers for."""

    def answers(self, spec: TrialSpec) -> bool:
        """Whether the card of `spec` would have run the same kernels."""
        return card_of(spec).chip in self.chips


def card_of(spec: TrialSpec) -> Gpu:
    """The card that a simulated trial is about."""
    return KNOWN_GPUS[str(spec.gpu)]


def simulate(
    spec: TrialSpec, model_config: Mapping[str, Any], *, gpus: Iterable[Gpu] = (), to_the_end: bool = False
) -> SimulatedRun:
    """Run the real trainer with the kernels of the specification's card.

    It answers for cards of `gpus` too, unless they would choose otherwise somewhere.

    It ends when its steps repeat, and tells those that are left; with `to_the_end` every step runs.

    Raises:
        UnsupportedTrialError: The simulation does not know an operation, or transformers the combination.
    """
    cards = (card_of(spec), *gpus)
    simulation = Simulation(cards[0], others=cards[1:])
    with tempfile.TemporaryDirectory() as folder, simulation.running():
        trainer = build_trainer(
            spec,
            model_config=model_config,
            placement=simulation,
            observer=simulation,
            output_dir=Path(folder),
            arguments_ready=simulation.adopt,
            shortcut_rollout=True,
        )
        simulation.trainer_ready(trainer)
        if not to_the_end:
            trainer.add_callback(RepeatedSteps(simulation.recorder))
        trainer.train()
        simulation.trainer_done(trainer)
    parameters, trainable = parameter_counts(trainer.model)
    return SimulatedRun(
        trace=simulation.recorder.finished(),
        parameters=parameters,
        trainable_parameters=trainable,
        micro_batches_run=trainer.micro_batches_run,
        steps_run=int(trainer.state.global_step),
        chips=frozenset(card.chip for card in cards) - simulation.recorder.diverged,
    )


def run_simulated(spec: TrialSpec, model_config: Mapping[str, Any]) -> Outcome:
    """Run the trial and say what its card would have said."""
    try:
        run = simulate(spec, model_config)
    except UnsupportedTrialError as error:
        return unsupported(spec, error)
    return outcome_on_card(run, spec)


def unsupported(spec: TrialSpec, error: UnsupportedTrialError) -> Outcome:
    """The outcome of a trial that cannot be simulated."""
    gpu = card_of(spec)
    return Outcome(status=Status.UNSUPPORTED, gpu_name=gpu.title, gpu_memory_bytes=gpu.memory_bytes, message=str(error))


def outcome_on_card(run: SimulatedRun, spec: TrialSpec) -> Outcome:
    """What the card of `spec` would have said of `run`; if it does not fit, up to the allocation that fails."""
    gpu = card_of(spec)
    config = parse_alloc_conf(spec.alloc_conf)
    context = cuda_context_bytes(gpu.compute_capability)
    trace = run.trace.on(gpu.chip)
    unlimited = replay_on_card(trace, capacity_bytes=None, config=config)
    on_card = _on_card(trace, unlimited, gpu.memory_bytes - context, config)
    steps, micro_batches = _reached(run, on_card)
    return Outcome(
        status=Status.OK if on_card.refusal is None else Status.OOM,
        parameters=run.parameters,
        trainable_parameters=run.trainable_parameters,
        gpu_name=gpu.title,
        gpu_memory_bytes=gpu.memory_bytes,
        peak_allocated_bytes=on_card.peak_allocated_bytes,
        peak_reserved_bytes=on_card.peak_reserved_bytes,
        peak_device_bytes=on_card.peak_reserved_bytes + context,
        peak_phase=on_card.peak_phase,
        required_allocated_bytes=unlimited.peak_allocated_bytes,
        required_reserved_bytes=unlimited.peak_reserved_bytes,
        required_unreleasable_bytes=unlimited.peak_unreleasable_bytes,
        context_bytes=context,
        peak_inactive_split_bytes=on_card.peak_inactive_split_bytes,
        alloc_retries=on_card.num_alloc_retries,
        oom=_out_of_memory(on_card),
        phases=tuple(
            PhasePeak(
                phase=phase,
                peak_allocated_bytes=peak.peak_allocated_bytes,
                peak_reserved_bytes=peak.peak_reserved_bytes,
            )
            for phase, peak in on_card.phases.items()
        ),
        breakdown=tuple(
            CategoryShare(category=category, size_bytes=size) for category, size in on_card.breakdown.items()
        ),
        step_shape=tuple(
            StepInstant(
                phase=instant.phase,
                shares=tuple(
                    CategoryShare(category=category, size_bytes=size) for category, size in instant.sizes_bytes.items()
                ),
            )
            for instant in step_shape(trace)
        ),
        largest=largest_groups(trace, on_card.live_bytes),
        message=_sentence(on_card, unlimited, gpu),
        steps_run=steps,
        micro_batches_run=micro_batches,
    )


def snapshot_on_card(run: SimulatedRun, spec: TrialSpec) -> Mapping[str, Any]:
    """A memory snapshot of `run` in torch's format on the card of `spec`, at its end or where it fails."""
    gpu = card_of(spec)
    return memory_snapshot(
        run.trace.on(gpu.chip),
        capacity_bytes=gpu.memory_bytes - cuda_context_bytes(gpu.compute_capability),
        alloc_conf=spec.alloc_conf,
        most_entries=_SNAPSHOT_ENTRIES,
    )


def _on_card(trace: Trace, unlimited: CardReplay, capacity_bytes: int, config: AllocatorConfig) -> CardReplay:
    """The replay with a limit, which is the one without where the limit is never met."""
    if unlimited.peak_reserved_bytes <= capacity_bytes and config.per_process_memory_fraction == 1.0:
        return unlimited
    return replay_on_card(trace, capacity_bytes=capacity_bytes, config=config)


def _reached(run: SimulatedRun, on_card: CardReplay) -> tuple[int, int]:
    """Optimizer steps and micro-batches finished: all of them, or those before the allocation that fails."""
    if on_card.refusal is None:
        return run.steps_run, run.micro_batches_run
    starts = run.trace.phase_starts
    begun = [
        phase for _, phase in starts[: bisect_left(starts, on_card.events_reached + 1, key=lambda start: start[0])]
    ]
    # A phase is finished when another one has begun after it.
    steps, micro_batches = begun[:-1].count(Phase.OPTIMIZER), begun[:-1].count(Phase.BACKWARD)
    # Steps that were told did not run.
    return min(steps, run.steps_run), min(micro_batches, run.micro_batches_run)


def _out_of_memory(replay: CardReplay) -> OutOfMemory | None:
    refusal = replay.refusal
    if refusal is None:
        return None
    return OutOfMemory(
        phase=refusal.phase,
        requested_bytes=refusal.requested_bytes,
        free_bytes=refusal.free_bytes,
        allocated_bytes=refusal.allocated_bytes,
        reserved_bytes=refusal.reserved_bytes,
    )


def _sentence(on_card: CardReplay, unlimited: CardReplay, gpu: Gpu) -> str:
    if on_card.refusal is None:
        return ""
    needed = f"{gib_text(unlimited.peak_allocated_bytes, 2)} would have been needed"
    return f"{on_card.refusal.message(gpu)} (Simulated, in {on_card.refusal.phase}; {needed}.)"
