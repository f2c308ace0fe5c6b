"""An estimate with its reasons, and whether it fits a card."""

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from profiler.analytical.estimate import estimate, phase_instants
from profiler.analytical.formulas.sizes.rounding import unreleasable_bytes
from profiler.analytical.formulas.vllm_memory import (
    accepted_tokens,
    lacks_cache,
    needed_cache_bytes,
    requested_bytes,
    vllm_memory,
)
from profiler.analytical.timeline.instants import Instant, InstantName
from profiler.analytical.timeline.recipes.registry import host_instants
from profiler.analytical.timeline.sharding.sharding import HostInstant
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.cards.card import cuda_context_bytes
from profiler.domain.cards.gpu import KNOWN_GPUS, Gpu
from profiler.domain.cards.gpu_names import find_gpu, gpu_named
from profiler.domain.memory import Category, Phase, gib_text
from profiler.domain.runs.outcome import Estimate
from profiler.domain.trials.kernels import MissingKernel, missing_kernel
from profiler.domain.trials.trial import DistributedType, TrialSpec, VllmMode


def engine_start_text(spec: TrialSpec, architecture: Architecture) -> str:
    """Return why vLLM refuses to start, with what to change, or nothing if it starts or runs elsewhere."""
    if not spec.use_vllm or not lacks_cache(spec, architecture):
        return ""
    parts, tokens = vllm_memory(spec, architecture), int(accepted_tokens(spec, architecture))
    part, needed = gib_text(int(requested_bytes(spec)), 1), gib_text(int(needed_cache_bytes(spec, architecture)), 1)
    taken = gib_text(int(parts.total - parts.kv_cache), 1)
    return (
        f"vLLM does not start: vllm_gpu_memory_utilization={spec.vllm_gpu_memory_utilization:g} of {spec.gpu} is "
        f"{part}, weights and activations take {taken}, and the KV cache of one sequence of {tokens} tokens needs "
        f"{needed}; {_hint(spec, architecture)}."
    )


def _hint(spec: TrialSpec, architecture: Architecture) -> str:
    """Return with which settings vLLM would start: the first with which the job also fits, else the first.

    Sequences are no longer than those of the job, and the part of the card is the smallest that is enough.
    """
    found = list(_settings(spec, architecture))
    if found:
        texts = (_checked(started, architecture, settings) for settings, started in found)
        first = next(texts)
        return next((text for text in (first, *texts) if text.startswith(_ADVICE)), first)
    shared = ", also with vllm_tensor_parallel_size" if spec.num_processes > 1 else ""
    return f"no part of the card is enough{shared}"


def _settings(spec: TrialSpec, architecture: Architecture) -> Iterator[tuple[str, TrialSpec]]:
    """Return settings with which vLLM starts, and the trial with them: on as many GPUs as now, then on more.

    trl asks for a divisor of the processes as the GPUs of one engine, and vLLM for one of the heads.
    """
    longest = spec.max_prompt_length + spec.max_completion_length
    job = replace(spec, vllm_max_model_length=longest)
    if not lacks_cache(job, architecture):
        yield f"vllm_max_model_length={longest}", job
    else:
        now, shorter = _least_part(spec, architecture), _least_part(job, architecture)
        if shorter is not None:
            limit = f" and vllm_max_model_length={longest}" if now != shorter else ""
            started = replace(job if limit else spec, vllm_gpu_memory_utilization=shorter)
            yield f"vllm_gpu_memory_utilization={shorter:g}{limit}", started
    for size in range(job.vllm_tensor_parallel_size + 1, job.num_processes + 1):
        if job.num_processes % size or architecture.num_attention_heads % size:
            continue
        shared = replace(job, vllm_tensor_parallel_size=size)
        if (part := _least_part(shared, architecture)) is not None:
            settings = f"vllm_tensor_parallel_size={size}, vllm_gpu_memory_utilization={part:g} and "
            yield f"{settings}vllm_max_model_length={longest}", replace(shared, vllm_gpu_memory_utilization=part)


def _checked(spec: TrialSpec, architecture: Architecture, settings: str) -> str:
    """Return settings with which vLLM starts as advice, if the job also fits with them; else what is missing."""
    card, found = gpu_named(str(spec.gpu)), estimate(spec, architecture)
    context = cuda_context_bytes(card.compute_capability)
    needed = unreleasable_bytes(found.peak_allocated_bytes, found.peak_reserved_bytes or found.peak_allocated_bytes)
    if needed + context <= card.memory_bytes:
        return f"{_ADVICE}{settings}"
    whole = f"{gib_text(needed + context)} of {gib_text(card.memory_bytes)}"
    return f"with {settings} it starts, but the job then needs {whole}"


_ADVICE = "use "


def _least_part(spec: TrialSpec, architecture: Architecture) -> float | None:
    """Return the smallest hundredth of the card with which vLLM starts; None if the whole card is too small."""

    def starts(hundredths: int) -> bool:
        return not lacks_cache(replace(spec, vllm_gpu_memory_utilization=hundredths / 100), architecture)

    least = bisect_left(range(101), True, lo=1, key=starts)
    return least / 100 if least <= 100 else None


_SERVER_PART = 0.9


def server_text(spec: TrialSpec, architecture: Architecture) -> str:
    """Return what the engine of `vllm_mode=server` needs of a card of its own; nothing without one.

    A file of the trainer does not say how the server is started, so it is that of `trl vllm-serve` with its defaults:
    one GPU, 0.9 of it, and sequences as long as the context of the model. As many as a generation has run at once.

    By hand, qwen2.5-7b on an H100: 0.9 x 84,944,093,184 B = 71.2 GiB, and 7,615,616,512 x 2 B = 14.2 GiB of weights.

    Source: `ScriptArguments` in trl 1.16's `trl/scripts/vllm_serve.py`.
    """
    if not spec.use_vllm or spec.vllm_mode is not VllmMode.SERVER:
        return ""
    alone = replace(
        spec,
        vllm_mode=VllmMode.COLOCATE,
        vllm_gpu_memory_utilization=_SERVER_PART,
        vllm_enable_sleep_mode=False,
        vllm_max_model_length=None,
        vllm_tensor_parallel_size=1,
    )
    card, parts = gpu_named(str(spec.gpu)), vllm_memory(alone, architecture)
    part = f"{gib_text(int(requested_bytes(alone)), 1)} of the {gib_text(card.memory_bytes, 1)} of {card.name}"
    weights = f"{gib_text(int(parts.weights), 1)} of weights"
    if not lacks_cache(alone, architecture):
        cache = gib_text(int(parts.kv_cache), 1)
        parts_text = f"{weights}, {cache} of KV cache"
        return f"The engine, on a card of its own, takes {part} by trl vllm-serve's defaults: {parts_text}."
    way = next((words for words, there in _servers(alone) if not lacks_cache(there, architecture)), "")
    hint = f"start it with {way}" if way else "nor on 8 of them"
    return f"The engine does not start on a card of its own, with {weights} in {part}; {hint}."


def _servers(alone: TrialSpec) -> Iterator[tuple[str, TrialSpec]]:
    """Yield ways to start an engine that needs less of each card, with the words of `trl vllm-serve`."""
    longest = alone.max_prompt_length + alone.max_completion_length
    for gpus in (1, 2, 4, 8):
        for length in (None, longest):
            words = [f"--tensor_parallel_size {gpus}"] if gpus > 1 else []
            words += [f"--max_model_len {length}"] if length else []
            yield " ".join(words), replace(alone, vllm_tensor_parallel_size=gpus, vllm_max_model_length=length)


class Fit(StrEnum):
    """The memory of a trial compared with that of a card."""

    FITS = "fits"
    """What a full card cannot return and the CUDA context fit, with the largest share of fragments."""
    TIGHT = "tight"
    """Allocated memory and the CUDA context fit; whether the fragments do is within the error of the method."""
    TOO_LARGE = "does not fit"
    """Allocated memory and the CUDA context do not fit."""
    NO_ENGINE = "vLLM does not start"
    """vLLM refuses to start with the part of the card that it may use."""
    NO_KERNEL = "no kernel"
    """A kernel that the trial needs does not run on the card."""


class Unanswered(StrEnum):
    """Verdicts that memory does not decide; a job of verl can have them."""

    NOT_POSSIBLE = "not possible"
    """verl does not run the job as it is described."""
    UNDECIDED = "not decided"
    """Something that changes memory has no formula."""


@dataclass(frozen=True, kw_only=True)
class CardVerdict:
    """The verdict for one card. Sizes are estimated, the CUDA context is assumed."""

    gpu: Gpu
    fit: Fit
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    context_bytes: int
    missing: MissingKernel | None
    """The kernel that the trial needs and the card does not have."""
    server: str = ""
    """What an engine on a card of its own needs of such a card. Empty if there is none."""
    no_engine: str = ""
    """Why vLLM refuses to start on the card, and what to change. Empty if it starts or runs elsewhere."""

    @property
    def starts(self) -> bool:
        """Whether the job comes to its first step: the card has its kernels, and vLLM starts."""
        return self.missing is None and not self.no_engine

    @property
    def refusal_text(self) -> str:
        """Why the job does not come to its first step. Empty if it does, or if memory alone decides."""
        return f"No kernel: {self.no_kernel_text}" if self.missing is not None else self.no_engine

    @property
    def needed_bytes(self) -> int:
        """What a full card cannot return, at most, and the CUDA context."""
        return unreleasable_bytes(self.peak_allocated_bytes, self.peak_reserved_bytes) + self.context_bytes

    @property
    def no_kernel_text(self) -> str:
        """The kernel that the card does not have, and what to change. Empty if it has all."""
        return f"{self.missing.name} does not run on {self.gpu.name}. {self.missing.hint}" if self.missing else ""

    @property
    def least_bytes(self) -> int:
        """Allocated memory and the CUDA context: less is never enough."""
        return self.peak_allocated_bytes + self.context_bytes

    @property
    def left_bytes(self) -> int:
        """Free memory at the peak; negative if the card may be too small."""
        return self.gpu.memory_bytes - self.needed_bytes


def card_verdict(spec: TrialSpec, architecture: Architecture, gpu: Gpu) -> CardVerdict:
    """Return whether `spec` fits `gpu`, with the kernels and workspaces of that card.

    Raises:
        UsageError: As in `estimate`.
    """
    return _verdict(spec, architecture, gpu, estimate(replace(spec, gpu=gpu.name), architecture))


def _verdict(spec: TrialSpec, architecture: Architecture, gpu: Gpu, found: Estimate) -> CardVerdict:
    """Return the verdict from the estimate for that card."""
    on_card = replace(spec, gpu=gpu.name)
    no_engine = engine_start_text(on_card, architecture)
    reserved = found.peak_reserved_bytes or found.peak_allocated_bytes
    return CardVerdict(
        gpu=gpu,
        fit=fit_of(
            spec,
            gpu,
            allocated_bytes=found.peak_allocated_bytes,
            reserved_bytes=reserved,
            engine_starts=not no_engine,
        ),
        peak_allocated_bytes=found.peak_allocated_bytes,
        peak_reserved_bytes=reserved,
        context_bytes=cuda_context_bytes(gpu.compute_capability),
        missing=missing_kernel(spec, gpu.chip),
        no_engine=no_engine,
        server=server_text(on_card, architecture),
    )


def fit_of(spec: TrialSpec, gpu: Gpu, *, allocated_bytes: int, reserved_bytes: int, engine_starts: bool = True) -> Fit:
    """Return whether a trial with these peaks fits `gpu`, and whether it comes so far."""
    if missing_kernel(spec, gpu.chip) is not None:
        return Fit.NO_KERNEL
    if not engine_starts:
        return Fit.NO_ENGINE
    return fit_of_memory(gpu, allocated_bytes=allocated_bytes, reserved_bytes=reserved_bytes)


def fit_of_memory(gpu: Gpu, *, allocated_bytes: int, reserved_bytes: int) -> Fit:
    """Return whether the memory of a job fits `gpu`."""
    available = gpu.memory_bytes - cuda_context_bytes(gpu.compute_capability)
    if unreleasable_bytes(allocated_bytes, reserved_bytes) <= available:
        return Fit.FITS
    return Fit.TIGHT if allocated_bytes <= available else Fit.TOO_LARGE


def all_cards(
    spec: TrialSpec, architecture: Architecture, cards: Iterable[Gpu] = KNOWN_GPUS.values()
) -> tuple[CardVerdict, ...]:
    """Return the verdict for each card, the smallest card first.

    Raises:
        UsageError: As in `estimate`.
    """
    ordered = sorted(cards, key=lambda gpu: gpu.memory_bytes)
    alike = {_what_counts(spec, gpu): gpu for gpu in reversed(ordered)}
    estimates = {each: estimate(replace(spec, gpu=gpu.name), architecture) for each, gpu in alike.items()}
    return tuple(_verdict(spec, architecture, gpu, estimates[_what_counts(spec, gpu)]) for gpu in ordered)


def _what_counts(spec: TrialSpec, gpu: Gpu) -> Hashable:
    """Return what the closed form reads of a card: cards with equal values have one estimate.

    Kernels and workspaces follow from the compute capability. vLLM takes a part of the memory.
    """
    return gpu if spec.use_vllm else gpu.compute_capability


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
    processes = min(spec.num_processes, gpus_per_node or GPUS_PER_NODE)
    return HostVerdict(instants=host_instants(spec, architecture, processes=processes), memory_bytes=memory_bytes)


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
    host: HostVerdict

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

    Raises:
        UsageError: As in `estimate`.
    """
    found = estimate(spec, architecture)
    instants = phase_instants(spec, architecture).values()
    phases = tuple(explained_phase(instant) for instant in instants)
    own = find_gpu(spec.gpu)
    cards = {**KNOWN_GPUS, **({own.name: own} if own is not None else {})}
    verdicts = all_cards(spec, architecture, cards.values())
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
