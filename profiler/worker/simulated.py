"""A trial on a simulated GPU, with few layers where they are proven equal, and on several cards."""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from profiler.allocator import CardReplay, Trace, parse_alloc_conf
from profiler.allocator.traces.recording import memory_snapshot
from profiler.allocator.traces.replay import largest_groups, step_shape
from profiler.allocator.traces.smallest_fit import replays
from profiler.allocator.traces.trace import LeftOut
from profiler.domain.cards.card import cuda_context_bytes, installed_torch_version
from profiler.domain.cards.gpu import KNOWN_GPUS, Chip, Gpu
from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.memory import Category, Phase, gib_text
from profiler.domain.runs.outcome import Breakdown, CardFacts, Outcome, Peaks, Status, UnlimitedCard, Verdict, Work
from profiler.domain.runs.readings import CategoryShare, OutOfMemory, PhasePeak, StepInstant
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import (
    Attention,
    DistributedType,
    Logprobs,
    RowLengths,
    TrialSpec,
    Tuning,
    Weights,
)
from profiler.simulation.depth.continuation import TrainedTensors, continued
from profiler.simulation.depth.repetitions import LAYERS_RUN, DepthDiffersError
from profiler.simulation.depth.uniformity import (
    DEPTH,
    adapter_difference,
    config_difference,
    counts_with_further,
    layer_difference,
    random_states,
    with_adapters,
    with_layers,
)
from profiler.simulation.extrapolation.step_template import MOST_EVENTS_EXTRAPOLATED
from profiler.simulation.session import Extrapolation, Simulation
from profiler.training.announced_steps import entropy_left_to
from profiler.training.arguments import lora_config
from profiler.training.models.model import build_config, random_model
from profiler.training.models.parameter_count import parameter_counts
from profiler.training.placement import RealDevice
from profiler.training.run import run_training

FEWEST_LAYERS = 16
"""From so many layers on a small run and its continuation take less time than a run of all layers."""

_MOST_STEPS = 16
"""Longer trials extrapolate optimizer steps up to a number of events, which another depth reaches earlier."""

_PROVEN: Mapping[str, Collection[object]] = {
    "weights": (Weights.RANDOM,),
    "dataset": (None,),
    "recipe": (Recipe.GRPO, Recipe.RLOO, Recipe.SFT, Recipe.DPO, Recipe.KTO, Recipe.REWARD),
    "critic": (False,),
    "logprobs": tuple(Logprobs),
    "use_liger_kernel": (False,),
    "reward_models": (None,),
    "images_per_prompt": (None,),
    "num_processes": (1,),
    "distributed_type": (DistributedType.NO,),
}
"""Values for which tests compare few layers with all of them. Buckets of several GPUs do not repeat by layer."""


def pays_with(model_config: Mapping[str, Any]) -> bool:
    """Return whether the model is so deep that few layers are faster."""
    layers = model_config.get(DEPTH)
    return isinstance(layers, int) and layers >= FEWEST_LAYERS


@dataclass(frozen=True, kw_only=True)
class EqualLayers:
    """Counts of a model whose layers are all alike."""

    parameters: int
    trainable_parameters: int
    trained: TrainedTensors


def equal_layers(spec: TrialSpec, model_config: Mapping[str, Any]) -> EqualLayers | None:
    """Return the counts of the trial's model; None unless all layers are proven equal.

    The model is built with all its layers on torch's meta device, which takes no memory and little time. Few of them
    get adapters, which take peft most of a second for many layers; their configuration is the same for each layer.
    """
    if not _is_proven(spec):
        return None
    config = build_config(model_config, name=spec.model)
    few = build_config(with_layers(model_config, LAYERS_RUN), name=spec.model)
    if config_difference(config, few):
        return None
    adapters = lora_config(spec)
    if adapter_difference(adapters):
        return None
    before = random_states()
    # Weights in 4 bits have the same places and shapes, and so have the modules with another attention.
    alike, meta = replace(spec, attn_implementation=Attention.EAGER), RealDevice(device=torch.device("meta"))
    whole, small = random_model(alike, config, meta), with_adapters(random_model(alike, few, meta), adapters)
    # A model that draws numbers on the host would change the order of the rows by its depth.
    if layer_difference(whole) or layer_difference(small) or random_states() != before:
        return None
    further = int(model_config[DEPTH]) - LAYERS_RUN
    parameters, trainable, tensors = counts_with_further(small, further, _counts)
    trained = TrainedTensors(few=_counts(small)[-1], all=tensors)
    return EqualLayers(parameters=parameters, trainable_parameters=trainable, trained=trained)


def _counts(model: Any) -> tuple[int, ...]:
    return *parameter_counts(model), sum(parameter.requires_grad for parameter in model.parameters())


def _is_proven(spec: TrialSpec) -> bool:
    # Python frees nested objects of the 4-bit products, deep in a graph of several forwards, in another order.
    graphs_are_flat = not (spec.tuning is Tuning.QLORA and spec.logprobs is Logprobs.SLICED)
    return (
        graphs_are_flat
        and spec.steps <= _MOST_STEPS
        and all(getattr(spec, key) in values for key, values in _PROVEN.items())
    )


_SNAPSHOT_ENTRIES = 100_000
"""Entries of a snapshot's history: the last optimizer steps, in a file that a browser can open."""


@dataclass(frozen=True, kw_only=True)
class SimulatedRun:
    """What one run of the real trainer allocated and freed, for a card of any size."""

    trace: Trace
    parameters: int
    trainable_parameters: int
    micro_batches_run: int
    steps_run: int
    chips: frozenset[Chip]
    """Chips of the cards that the run is valid for."""
    knows_modules: bool = True
    """Whether all blocks that models made have the path of their module."""
    layers_run: int | None = None
    """Decoder layers of the deepest model that ran; the others are extrapolated. None: all layers ran."""
    left_out: Sequence[LeftOut] = ()
    """What the trace of few layers leaves out until it is continued."""

    def answers(self, spec: TrialSpec) -> bool:
        """Return whether the card of `spec` would have run the same kernels."""
        return card_of(spec).chip in self.chips


class OnCard(Protocol):
    """What of a trial or of a script decides how a trace is replayed."""

    @property
    def gpu(self) -> str | None:
        """The card."""

    @property
    def alloc_conf(self) -> str:
        """Settings of torch's allocator."""


def card_of(spec: OnCard) -> Gpu:
    """Return the card of a simulated trial or script."""
    return KNOWN_GPUS[str(spec.gpu)]


def simulate(
    spec: TrialSpec,
    model_config: Mapping[str, Any],
    *,
    gpus: Iterable[Gpu] = (),
    to_the_end: bool = False,
    all_layers: bool = False,
    rows: RowLengths | None = None,
    defers_scratch: bool = False,
) -> SimulatedRun:
    """Run the real trainer with the kernels of the specification's card.

    The run is valid for cards of `gpus` too, unless they diverge. It ends when its optimizer steps repeat, and the
    others are extrapolated; with `to_the_end` every step runs. A deep model whose layers are proven equal runs with few
    of them, and the others are extrapolated; with `all_layers` every layer runs. With `rows`, their lengths, every step
    runs; with `defers_scratch` the scratch of kernels is left open in their trace.

    Raises:
        UnsupportedTrialError: The simulation does not know an operation, or transformers does not support the
            combination.
    """
    cards = (card_of(spec), *gpus)
    if not (all_layers or to_the_end) and pays_with(model_config):
        extrapolated = simulate_few_layers(spec, model_config, cards, rows=rows, defers_scratch=defers_scratch)
        if extrapolated is not None:
            return extrapolated
    extrapolation = Extrapolation(steps=not to_the_end and rows is None, scratch=defers_scratch)
    return _run(spec, model_config, cards, extrapolation, rows)


def simulate_few_layers(
    spec: TrialSpec,
    model_config: Mapping[str, Any],
    cards: Sequence[Gpu],
    *,
    rows: RowLengths | None = None,
    defers_scratch: bool = False,
) -> SimulatedRun | None:
    """Run the trainer with three layers, and continue its trace to all layers; None if that is not exact."""
    equal = equal_layers(spec, model_config)
    if equal is None:
        return None
    extrapolation = Extrapolation(steps=rows is None, scratch=defers_scratch, layers_of=model_config)
    few = _run(spec, with_layers(model_config, LAYERS_RUN), cards, extrapolation, rows)
    if not few.knows_modules:
        return None
    try:
        layers = int(model_config[DEPTH])
        trace = continued(few.trace, layers=layers, trained=equal.trained, left_out=few.left_out)
    except DepthDiffersError:
        return None
    # A run of all layers would have extrapolated fewer steps.
    if few.steps_run < spec.steps and len(trace.events) > MOST_EVENTS_EXTRAPOLATED:
        return None
    return replace(
        few,
        trace=trace,
        left_out=(),
        parameters=equal.parameters,
        trainable_parameters=equal.trainable_parameters,
        layers_run=LAYERS_RUN,
    )


def _run(
    spec: TrialSpec,
    model_config: Mapping[str, Any],
    cards: Sequence[Gpu],
    extrapolation: Extrapolation,
    rows: RowLengths | None,
) -> SimulatedRun:
    simulation = Simulation(
        cards[0],
        others=cards[1:],
        extrapolation=extrapolation,
        offloads=spec.activation_offloading,
        processes=spec.num_processes,
    )
    with entropy_left_to(simulation.left_open):
        trained = run_training(spec, model_config, simulation, rows=rows)
    return SimulatedRun(
        trace=simulation.recorder.finished(),
        left_out=tuple(simulation.recorder.trace.left_out),
        parameters=trained.parameters,
        trainable_parameters=trained.trainable_parameters,
        micro_batches_run=trained.micro_batches_run,
        steps_run=trained.steps_run,
        chips=frozenset(card.chip for card in cards) - simulation.recorder.diverged,
        knows_modules=simulation.recorder.modules.all_known,
    )


def run_simulated(spec: TrialSpec, model_config: Mapping[str, Any]) -> Outcome:
    """Run the trial and return its outcome on its card."""
    try:
        run = simulate(spec, model_config)
    except UnsupportedTrialError as error:
        return unsupported(spec, error)
    return outcome_on_card(run, spec)


def unsupported(spec: TrialSpec, error: UnsupportedTrialError) -> Outcome:
    """Return the outcome of a trial that cannot be simulated."""
    gpu = card_of(spec)
    return Outcome(
        verdict=Verdict(status=Status.UNSUPPORTED, message=str(error)),
        card=CardFacts(name=gpu.title, memory_bytes=gpu.memory_bytes),
    )


def outcome_on_card(run: SimulatedRun, spec: OnCard) -> Outcome:
    """Return the outcome of `run` on the card of `spec`; if it does not fit, up to the allocation that fails."""
    gpu = card_of(spec)
    config = parse_alloc_conf(spec.alloc_conf, torch_version=installed_torch_version())
    context = cuda_context_bytes(gpu.compute_capability)
    trace = run.trace.on(gpu.chip)
    unlimited, on_card = replays(trace, config, capacity_bytes=gpu.usable_bytes, total_bytes=gpu.memory_bytes)
    return Outcome(
        verdict=Verdict(
            status=Status.OK if on_card.refusal is None else Status.OOM,
            oom=_out_of_memory(on_card),
            message=_sentence(on_card, unlimited, gpu),
        ),
        work=_work(run, on_card),
        card=CardFacts(name=gpu.title, memory_bytes=gpu.memory_bytes, context_bytes=context),
        peaks=_peaks(on_card, context),
        breakdown=Breakdown(shares=_shares(on_card.breakdown), largest=largest_groups(trace, on_card.live_bytes)),
        unlimited=UnlimitedCard(
            required_allocated_bytes=unlimited.peak_allocated_bytes,
            required_reserved_bytes=unlimited.peak_reserved_bytes,
            required_unreleasable_bytes=unlimited.peak_unreleasable_bytes,
            step_shape=tuple(
                StepInstant(phase=instant.phase, shares=_shares(instant.sizes_bytes)) for instant in step_shape(trace)
            ),
        ),
    )


def _peaks(on_card: CardReplay, context_bytes: int) -> Peaks:
    return Peaks(
        allocated_bytes=on_card.peak_allocated_bytes,
        reserved_bytes=on_card.peak_reserved_bytes,
        device_bytes=on_card.peak_reserved_bytes + context_bytes,
        phase=on_card.peak_phase,
        inactive_split_bytes=on_card.peak_inactive_split_bytes,
        alloc_retries=on_card.num_alloc_retries,
        phases=tuple(
            PhasePeak(
                phase=phase,
                peak_allocated_bytes=peak.peak_allocated_bytes,
                peak_reserved_bytes=peak.peak_reserved_bytes,
            )
            for phase, peak in on_card.phases.items()
        ),
    )


def _shares(sizes_bytes: Mapping[Category, int]) -> tuple[CategoryShare, ...]:
    return tuple(CategoryShare(category=category, size_bytes=size) for category, size in sizes_bytes.items())


def snapshot_on_card(run: SimulatedRun, spec: OnCard) -> Mapping[str, Any]:
    """Return a memory snapshot of `run` on the card of `spec`, in torch's format, at its end or where it fails."""
    gpu = card_of(spec)
    return memory_snapshot(
        run.trace.on(gpu.chip),
        capacity_bytes=gpu.usable_bytes,
        total_bytes=gpu.memory_bytes,
        alloc_conf=spec.alloc_conf,
        most_entries=_SNAPSHOT_ENTRIES,
        torch_version=installed_torch_version(),
    )


def _work(run: SimulatedRun, on_card: CardReplay) -> Work:
    steps, micro_batches = _reached(run, on_card)
    return Work(
        parameters=run.parameters,
        trainable_parameters=run.trainable_parameters,
        steps_run=steps,
        micro_batches_run=micro_batches,
        layers_run=run.layers_run,
    )


def _reached(run: SimulatedRun, on_card: CardReplay) -> tuple[int, int]:
    """Return the optimizer steps and micro-batches finished, up to the allocation that fails."""
    if on_card.refusal is None:
        return run.steps_run, run.micro_batches_run
    starts = run.trace.phase_starts
    begun = [
        phase for _, phase in starts[: bisect_left(starts, on_card.events_reached + 1, key=lambda start: start[0])]
    ]
    # A phase is finished when another one has begun after it.
    steps, micro_batches = begun[:-1].count(Phase.OPTIMIZER), begun[:-1].count(Phase.BACKWARD)
    # Extrapolated steps did not run.
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
