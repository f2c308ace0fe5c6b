"""An estimate with its reasons, and whether it fits a card; and the estimates of a grid with their verdicts."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from profiler.analytical.estimate import MOST_REPLAYED, estimate, estimate_with_replay, phase_instants, with_replay
from profiler.analytical.explanation.engine_start import engine_start_text, server_text
from profiler.analytical.formulas.sizes.rounding import Needed
from profiler.analytical.timeline.instants import Instant, InstantName, read_of_card
from profiler.analytical.timeline.recipes.registry import host_instants
from profiler.analytical.timeline.sharding.sharding import HostInstant
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.cards.card import cuda_context_bytes, nccl_bytes, outside_torch_bytes
from profiler.domain.cards.gpu import KNOWN_GPUS, Gpu
from profiler.domain.cards.gpu_names import find_gpu
from profiler.domain.machines.extras import missing
from profiler.domain.memory import Category, Phase
from profiler.domain.runs.outcome import Estimate
from profiler.domain.trials.kernels import Bounds, MissingKernel, missing_kernel
from profiler.domain.trials.trial import DistributedType, TrialSpec
from profiler.domain.verl import VLLM


class Fit(StrEnum):
    """The memory of a trial compared with that of a card."""

    FITS = "fits"
    """What a full card cannot return at most, the CUDA context and NCCL fit."""
    TIGHT = "tight"
    """What it cannot return at least fits; whether the most of it does is within the error of the method."""
    UNDECIDED = "not decided"
    """Something that changes memory has no formula, or the card lies between the bounds of a job."""
    TOO_LARGE = "does not fit"
    """What it cannot return at least, the CUDA context and NCCL do not fit."""
    NO_ENGINE = f"{VLLM.title} does not start"
    """The rollout engine refuses to start with the part of the card that it may use; SGLang is named as itself."""
    NO_KERNEL = "no kernel"
    """A kernel that the trial needs does not run on the card."""


class Unanswered(StrEnum):
    """Verdicts that memory does not decide; a job of verl can have them."""

    NOT_POSSIBLE = "not possible"
    """verl does not run the job as it is described."""


@dataclass(frozen=True, kw_only=True)
class CardVerdict:
    """The verdict for one card. Sizes are estimated, the CUDA context and NCCL's memory are assumed."""

    gpu: Gpu
    fit: Fit
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    needed: Needed
    context_bytes: int
    nccl_bytes: int
    """0 for one GPU."""
    missing: MissingKernel | None
    """The kernel that the trial needs and the card does not have."""
    server: str = ""
    """What an engine on a card of its own needs of such a card. Empty if there is none."""
    no_engine: str = ""
    """Why the engine refuses to start on the card, and what to change. Empty if it starts or runs elsewhere."""
    engine: str = VLLM.title
    has_bounds: bool = False
    """Whether allocated memory itself is known by bounds only, of which `peak_allocated_bytes` is the upper one."""

    @property
    def starts(self) -> bool:
        """Whether the job comes to its first step: the card has its kernels, and vLLM starts."""
        return self.missing is None and not self.no_engine

    @property
    def word(self) -> str:
        """The verdict in words."""
        return f"{self.engine} does not start" if self.fit is Fit.NO_ENGINE else self.fit.value

    @property
    def refusal_text(self) -> str:
        """Why the job does not come to its first step. Empty if it does, or if memory alone decides."""
        return f"No kernel: {self.no_kernel_text}" if self.missing is not None else self.no_engine

    @property
    def outside_bytes(self) -> int:
        """The CUDA context, and NCCL's memory."""
        return self.context_bytes + self.nccl_bytes

    @property
    def needed_bytes(self) -> int:
        """What a full card cannot return, at most, and what is outside of torch's allocator."""
        return self.needed.most_bytes + self.outside_bytes

    @property
    def no_kernel_text(self) -> str:
        """The kernel that the card does not have, and what to change. Empty if it has all."""
        return f"{self.missing.name} does not run on {self.gpu.name}. {self.missing.hint}" if self.missing else ""

    @property
    def least_bytes(self) -> int:
        """What it cannot return, at least, and what is outside of torch's allocator: less is not enough."""
        return self.needed.least_bytes + self.outside_bytes

    @property
    def left_bytes(self) -> int:
        """Free memory at the peak; negative if the card may be too small."""
        return self.gpu.memory_bytes - self.needed_bytes


def card_verdict(spec: TrialSpec, architecture: Architecture, gpu: Gpu, *, replays: bool = False) -> CardVerdict:
    """Return whether `spec` fits `gpu`, with the kernels and workspaces of that card.

    Reserved memory and fragments are bounds; with `replays` those of a replay, where fragments may decide.

    Raises:
        UsageError: As in `estimate`.
    """
    on_card = replace(spec, gpu=gpu.name)
    found = estimate(on_card, architecture)
    return _judged(on_card, architecture, gpu, found) if replays else _verdict(on_card, architecture, gpu, found)


def _judged(on_card: TrialSpec, architecture: Architecture, gpu: Gpu, found: Estimate) -> CardVerdict:
    """Return the verdict, with a replay where fragments may decide: tensors fit, and with as much again would not."""
    may_decide = 0 <= gpu.memory_bytes - found.peak_allocated_bytes < found.peak_allocated_bytes
    if may_decide and found.peak_unreleasable_bytes is None:
        found = with_replay(found, on_card, architecture)
    return _verdict(on_card, architecture, gpu, found if may_decide else replace(found, peak_unreleasable_bytes=None))


def _verdict(on_card: TrialSpec, architecture: Architecture, gpu: Gpu, found: Estimate) -> CardVerdict:
    """Return the verdict from the estimate for that card."""
    no_engine = engine_start_text(on_card, architecture)
    needed = needed_of(on_card, found)
    return CardVerdict(
        gpu=gpu,
        fit=fit_of(on_card, gpu, needed, engine_starts=not no_engine),
        peak_allocated_bytes=found.peak_allocated_bytes,
        peak_reserved_bytes=found.reserved_bytes,
        needed=needed,
        context_bytes=cuda_context_bytes(gpu.compute_capability),
        nccl_bytes=nccl_bytes(gpu.compute_capability, on_card.num_processes),
        missing=missing_kernel(on_card, gpu.chip),
        no_engine=no_engine,
        server=server_text(on_card, architecture),
    )


def needed_of(spec: TrialSpec, found: Estimate) -> Needed:
    """Return what a full card must hold by an estimate: by its replay, or else within bounds."""
    if (unreleasable := found.peak_unreleasable_bytes) is None:
        return Needed.within_bounds(found.peak_allocated_bytes, found.reserved_bytes)
    conf, gpus, is_staged = str(spec.alloc_conf), spec.num_processes, not found.replays_operations
    rows = found.peak_of_rows_bytes if spec.gradient_checkpointing and is_staged else 0
    return Needed.by_replay(found.peak_allocated_bytes, unreleasable, alloc_conf=conf, gpus=gpus, recomputed_bytes=rows)


def fit_of(spec: TrialSpec, gpu: Gpu, needed: Needed, *, engine_starts: bool = True) -> Fit:
    """Return whether a trial that needs so much fits `gpu`, and whether it comes so far."""
    if missing_kernel(spec, gpu.chip) is not None:
        return Fit.NO_KERNEL
    return fit_of_memory(gpu, needed, gpus=spec.num_processes) if engine_starts else Fit.NO_ENGINE


def fit_of_memory(gpu: Gpu, needed: Needed, *, gpus: int) -> Fit:
    """Return whether the memory of a job on `gpus` cards fits one of them."""
    available = gpu.memory_bytes - outside_torch_bytes(gpu.compute_capability, gpus)
    if needed.most_bytes <= available:
        return Fit.FITS
    return Fit.TIGHT if needed.least_bytes <= available else Fit.TOO_LARGE


def all_cards(
    spec: TrialSpec, architecture: Architecture, cards: Iterable[Gpu] = KNOWN_GPUS.values()
) -> tuple[CardVerdict, ...]:
    """Return the verdict for each card, the smallest card first, with replays as of `card_verdict`.

    Raises:
        UsageError: As in `estimate`.
    """
    ordered = sorted(cards, key=lambda gpu: gpu.memory_bytes)
    alike = {what_counts(spec, gpu): gpu for gpu in reversed(ordered)}
    estimates = {each: estimate(replace(spec, gpu=gpu.name), architecture) for each, gpu in alike.items()}
    return tuple(
        _judged(replace(spec, gpu=gpu.name), architecture, gpu, estimates[what_counts(spec, gpu)]) for gpu in ordered
    )


def what_counts(spec: TrialSpec, gpu: Gpu) -> Hashable:
    """Return what the closed form reads of a card: with vLLM also its memory."""
    return gpu if spec.use_vllm else read_of_card(gpu)


GPUS_PER_NODE = 8
"""ASSUMED: the most processes of a job on one node."""


@dataclass(frozen=True, kw_only=True)
class HostVerdict:
    """The memory of the processes of one node on their host, and the verdict if its size is known. Estimated."""

    instants: tuple[HostInstant, ...]
    memory_bytes: int | None
    """That of the node."""

    @property
    def processes(self) -> int:
        """Processes of the node."""
        return self.peak.processes

    @property
    def peak(self) -> HostInstant:
        """The instant at which the least is largest."""
        return max(self.instants, key=lambda instant: (instant.least_bytes, instant.most_bytes))

    @property
    def least_bytes(self) -> int:
        """What is counted: less is never enough."""
        return self.peak.least_bytes

    @property
    def most_bytes(self) -> int:
        """The same with all that may be added."""
        return max(instant.most_bytes for instant in self.instants)

    @property
    def is_offloaded(self) -> bool:
        """Whether a process keeps more than its libraries on the host while it trains, or may do so."""
        parts = [part for instant in self.instants if instant.phase is Phase.OPTIMIZER for part in instant.parts]
        return any(part.category is not Category.OTHER for part in parts)

    @property
    def fit(self) -> Fit | None:
        """The verdict; None if the size of the host is unknown."""
        if self.memory_bytes is None:
            return None
        if self.most_bytes <= self.memory_bytes:
            return Fit.FITS
        return Fit.TIGHT if self.least_bytes <= self.memory_bytes else Fit.TOO_LARGE


def host_verdict(
    spec: TrialSpec, architecture: Architecture, *, memory_bytes: int | None = None, gpus_per_node: int | None = None
) -> HostVerdict:
    """Return the memory of the processes of one node.

    By hand, qwen2.5-0.5b full in bfloat16 by DDP on 2 GPUs, while it saves: 2 x 1,802,903,552 B of libraries and
    494,032,768 x 2 B, in all 4,593,872,640 B.

    Args:
        spec: The trial, which has a closed form.
        architecture: Its model.
        memory_bytes: That of the node; None if it is unknown.
        gpus_per_node: Processes of one node at most; None: `GPUS_PER_NODE`.
    """
    instants = host_instants(spec, architecture, processes=min(spec.num_processes, gpus_per_node or GPUS_PER_NODE))
    return HostVerdict(instants=instants, memory_bytes=memory_bytes)


@dataclass(frozen=True, kw_only=True)
class ExplainedShare:
    """Bytes of one category at one instant."""

    category: Category
    size_bytes: int
    short_form: str


@dataclass(frozen=True, kw_only=True)
class ExplainedPhase:
    """The largest instant of a phase."""

    phase: Phase
    instant: InstantName
    peak_allocated_bytes: int
    shares: tuple[ExplainedShare, ...]
    """Sum to `peak_allocated_bytes`."""


@dataclass(frozen=True, kw_only=True)
class ExplainedEstimate:
    """The estimate of a trial with all its parts."""

    spec: TrialSpec
    estimate: Estimate
    phases: tuple[ExplainedPhase, ...]
    cards: tuple[CardVerdict, ...]
    """The verdict for each known card, the smallest card first."""
    host: HostVerdict | None
    bounds: Bounds | None = None
    """Where all sizes are upper bounds, and the host is not known; None: they are estimates."""

    @property
    def peak_phase(self) -> ExplainedPhase:
        """The phase of the peak."""
        return next(each for each in self.phases if each.phase is self.estimate.peak_phase)

    @property
    def gathered(self) -> ExplainedShare | None:
        """What sharded GPUs gather at the peak, if that is the largest category there, else None."""
        largest = max(self.peak_phase.shares, key=lambda share: share.size_bytes)
        shards = self.spec.distributed_type in (DistributedType.FSDP, DistributedType.DEEPSPEED)
        return largest if shards and largest.category is Category.COMMUNICATION else None


def explain(
    spec: TrialSpec, architecture: Architecture, *, host_bytes: int | None = None, gpus_per_node: int | None = None
) -> ExplainedEstimate:
    """Return the estimate of `spec` with its reasons; `host_bytes` and `gpus_per_node` as of `host_verdict`.

    Reserved memory of the trial and of its own card is by a replay, that of other cards is the bound.

    Raises:
        UsageError: As in `estimate`.
    """
    found = estimate_with_replay(spec, architecture)
    phases = tuple(map(explained_phase, phase_instants(spec, architecture).values()))
    own = find_gpu(spec.gpu)
    verdicts = all_cards(spec, architecture, (KNOWN_GPUS if own is None else {**KNOWN_GPUS, own.name: own}).values())
    if own is not None:
        judged = _judged(spec, architecture, own, found)
        verdicts = tuple(judged if verdict.gpu == own else verdict for verdict in verdicts)
    host = host_verdict(spec, architecture, memory_bytes=host_bytes, gpus_per_node=gpus_per_node)
    return ExplainedEstimate(spec=spec, estimate=found, phases=phases, cards=verdicts, host=host)


def explained_phase(instant: Instant) -> ExplainedPhase:
    """Return the phase of which `instant` is the largest, with a short form per category."""
    words = instant.words()
    shares = tuple(
        ExplainedShare(category=category, size_bytes=int(instant.sizes[category]), short_form=words[category])
        for category in Category
        if category in words
    )
    return ExplainedPhase(
        phase=instant.phase, instant=instant.name, peak_allocated_bytes=int(instant.total_bytes), shares=shares
    )


@dataclass(frozen=True, kw_only=True)
class EstimatedPoint:
    """The estimate of one trial of a grid."""

    spec: TrialSpec
    estimate: Estimate
    fit: Fit | None
    """The verdict for the card of the trial; None if it names none."""
    is_open: bool = False
    """Whether it leaves out what shards the trial."""


@dataclass(frozen=True, kw_only=True)
class EstimatedGrid:
    """The estimates of a grid."""

    keys: tuple[str, ...]
    """The keys that the grid varies."""
    points: tuple[EstimatedPoint, ...]

    @property
    def is_replayed(self) -> bool:
        """Whether each trial was estimated by itself, with a replay where there is one."""
        return len(self.points) <= MOST_REPLAYED


def estimate_grid(
    specs: Sequence[TrialSpec], keys: Sequence[str], architectures: Mapping[str, Architecture]
) -> EstimatedGrid:
    """Return the estimates of `specs`, in order.

    Args:
        specs: The trials.
        keys: The keys that vary.
        architectures: The architecture of each model.

    Raises:
        UsageError: As in `estimate`.
    """
    points = []
    for spec, found in zip(specs, _estimates(specs, architectures), strict=True):
        gpu, fit = find_gpu(spec.gpu), None
        if gpu is not None:
            starts = not engine_start_text(spec, architectures[spec.model])
            fit = fit_of(spec, gpu, needed_of(spec, found), engine_starts=starts)
        points.append(EstimatedPoint(spec=spec, estimate=found, fit=fit))
    return EstimatedGrid(keys=tuple(keys), points=tuple(points))


def _estimates(specs: Sequence[TrialSpec], architectures: Mapping[str, Architecture]) -> Sequence[Estimate]:
    """Return the estimate of each trial: one by one if they are few, else with arrays, if numpy is installed."""
    if len(specs) <= MOST_REPLAYED:
        return [estimate_with_replay(spec, architectures[spec.model]) for spec in specs]
    if missing(["numpy"]):
        return [estimate(spec, architectures[spec.model]) for spec in specs]
    from profiler.analytical.many import estimate_specs

    table = estimate_specs(specs, architectures)
    return [table.estimate(row) for row in range(len(specs))]
