"""Runs that are no trials: of a training script, and of a monitored command."""

import shlex
from dataclasses import dataclass, field
from enum import StrEnum

from profiler.domain.memory import Phase
from profiler.domain.runs.columns import column, spread
from profiler.domain.runs.outcome import Run, Status, Versions
from profiler.domain.runs.readings import CategoryShare
from profiler.domain.trials.trial import Backend


class ScriptWeights(StrEnum):
    """Where a script's models get their values from."""

    RANDOM = "random"
    """Models are built from their configuration; no checkpoint is read."""
    CHECKPOINT = "checkpoint"
    """As the script has it."""


PROMPT_TOKENS, COMPLETION_TOKENS = 256, 512
"""Default lengths in a data set that is replaced: below 1,024 tokens, from which some of trl's trainers drop rows."""

_LOST = "its process was lost"
_NO_LATE_EVENTS = "no such run, or its figure is unknown"


@dataclass(frozen=True, kw_only=True)
class ScriptSpec:
    """A script and everything that the user said about its run."""

    script: str = field(metadata=column("path of the script"))
    """Absolute."""
    arguments: tuple[str, ...] = field(
        default=(), metadata=column("the words after the script, as a shell would take them", as_text=shlex.join)
    )
    launcher: tuple[str, ...] = field(
        default=(),
        metadata=column(
            "the words in front of the script, such as torchrun", "there is no launcher", as_text=shlex.join
        ),
    )
    """Such as ``("torchrun", "--nproc_per_node=8")``."""
    backend: Backend = field(
        metadata=column("cuda: measured; emulated: on an emulated driver; simulated: on a simulated GPU")
    )
    gpu: str | None = field(
        default=None,
        metadata=column(
            "the emulated or simulated card, or the card that a real one is capped to", "the whole real card"
        ),
    )
    steps: int | None = field(
        default=None,
        metadata=column("steps after which the script is ended", "it runs to its end", unit="optimizer steps"),
    )
    num_processes: int = field(
        default=1, metadata=column("ranks of the job; the figures are those of rank 0", unit="processes")
    )
    weights: ScriptWeights = field(default=ScriptWeights.RANDOM, metadata=column("random or checkpoint"))
    """Whether models have random weights, or those of their checkpoints."""
    prompt_tokens: int = field(
        default=PROMPT_TOKENS,
        metadata=column("length of each prompt in a data set that was replaced", unit="tokens"),
    )
    completion_tokens: int = field(
        default=COMPLETION_TOKENS, metadata=column("length of each completion in such a data set", unit="tokens")
    )
    """A text has those of a prompt and of a completion."""
    alloc_conf: str = field(default="", metadata=column("PYTORCH_ALLOC_CONF, where it is set", "torch's own settings"))


@dataclass(frozen=True, kw_only=True)
class ScriptEnding:
    """How a script ended."""

    exit_code: int = field(
        metadata=column("with which Python would have ended", _LOST, unit="exit code", is_signed=True)
    )
    """0 if the script was ended after its steps."""
    by_steps: bool = field(
        metadata=column("whether it was ended after its steps, and not by itself", _LOST, name="ended_by_steps")
    )


@dataclass(frozen=True, kw_only=True)
class HeldTensors:
    """Memory on the card that came from one place of the program."""

    size_bytes: int = field(metadata=column("bytes at the peak, or when an allocation failed", name="bytes"))
    tensors: int = field(metadata=column("tensors of this name or from this place", unit="tensors"))
    name: str = field(metadata=column("name in the model or the optimizer; empty where unknown"))
    """Such as ``"gradient of layers.*.mlp.weight"``."""
    line: str = field(metadata=column("line of the script; empty where unknown, as in a backward pass"))
    """Also of a file next to it: ``"train.py:41"``."""
    library: str = field(metadata=column("innermost line of another library than torch; empty where there is none"))
    """Such as ``"modeling_qwen2.py:48"``."""


@dataclass(frozen=True, kw_only=True)
class NamedCard:
    """The card of a script, as far as it is known without CUDA."""

    uuid: str
    """Empty if emulated."""
    name: str
    memory_bytes: int
    compute_capability: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class ScriptJob:
    """Everything that the process of a script has to know."""

    run_id: str
    spec: ScriptSpec
    script_sha256: str
    versions: Versions
    folder: str
    """Where the record goes."""
    snapshot: bool = False
    """Whether a memory snapshot is written."""
    breakdown: bool = False
    """Whether the largest tensors at the peak are named."""
    sample_period_s: float | None = None
    """Seconds between samples of the driver; None takes none."""
    note_file: str = ""
    """Where the process writes why it ends without a record; empty for nowhere."""
    again_file: str = ""
    """Where it writes why the script has to run once more with all layers; empty: all layers run at once."""
    card: NamedCard | None = None
    """The real card, or the emulated one of unlimited memory; None if the specification names the card."""


@dataclass(frozen=True, kw_only=True)
class LateEvents:
    """The peaks of an emulated run whose events are reached late: when host and card have met."""

    status: Status = field(
        metadata=column("how the emulated run ended whose events were reached late", _NO_LATE_EVENTS)
    )
    allocated_bytes: int | None = field(metadata=column("peak of allocated memory with late events", _NO_LATE_EVENTS))
    reserved_bytes: int | None = field(metadata=column("peak of reserved memory with late events", _NO_LATE_EVENTS))


@dataclass(frozen=True, kw_only=True)
class ScriptRecord(Run):
    """One run of a script with its outcome."""

    run_id: str = field(
        metadata=column("content hash of the script, of how it is run, and of the versions", identifies=True)
    )
    spec: ScriptSpec = field(metadata=spread())
    script_sha256: str = field(metadata=column("hash of the script's text"))
    substitutes: tuple[str, ...] = field(
        default=(),
        metadata=column(
            "what this machine lacks, and by what it was replaced", "nothing was replaced", as_text="; ".join
        ),
    )
    """A phrase for each model, tokenizer or data set."""
    ending: ScriptEnding | None = field(default=None, metadata=spread())
    """None if its process ended without a word."""
    largest: tuple[HeldTensors, ...] = ()
    """The largest tensors on the card when an allocation failed, largest first; empty if none failed."""
    late_events: LateEvents | None = field(default=None, metadata=spread("late_events_"))
    """The other bound of an emulated run; None if it was not asked for, or if the run did not end well."""


@dataclass(frozen=True, kw_only=True)
class JobPhase:
    """The peaks of torch's counters in one phase of a process, on the card where each is highest."""

    phase: Phase
    allocated_bytes: int
    reserved_bytes: int
    shares: tuple[CategoryShare, ...] = ()
    """What `allocated_bytes` consists of; empty if it was not asked for, or not followed to this peak."""


@dataclass(frozen=True, kw_only=True)
class JobProcess:
    """What one process of a job held of the emulated cards and did, up to its end or up to now."""

    pid: int
    parent: int
    command: str
    """Its words, or the title that it gave itself; cut after some 400 bytes."""
    rank: int | None
    """In the largest group of NCCL that it joined, or what its launcher said; None without either."""
    ranks: int | None
    roles: tuple[str, ...]
    """``"trains"`` after a backward pass, ``"generates"`` after a sampled token, else ``"scores"`` after a product."""
    last_sentence: str
    """Of the error that ended it; empty if none did."""
    last_sentence_s: float
    """When it said this, on the clock of the machine; 0 if it did not."""
    has_ended_itself: bool
    """False while it runs, and if a signal or `os._exit` ended it."""
    peak_bytes: tuple[int, ...]
    """The most that it held of each card of the machine, with its context."""
    refused_bytes: int
    """Bytes of its last allocation that a card had no memory for; 0 if there was none."""
    refused_card: int | None
    phases: tuple[JobPhase, ...] = ()
    """In the order of a training step; those in which torch held memory of a card."""
    at_worst_bytes: tuple[int, ...] = ()
    """What it held of each card at the instant at which all processes together held the most of that card."""
    at_worst_phases: tuple[Phase, ...] = ()
    """In which phase it was then, for each card."""


@dataclass(frozen=True, kw_only=True)
class JobChange:
    """What a process holds of a card from here on, with its context, and in which phase it is."""

    process: int
    """Its place in the processes of the job."""
    card: int
    phase: Phase
    held_bytes: int


@dataclass(frozen=True, kw_only=True)
class JobMemory:
    """The processes of a job on emulated cards, in the order of their start."""

    processes: tuple[JobProcess, ...] = ()
    card_peak_bytes: tuple[int, ...] = ()
    """The most that all of them held of each card at once."""
    course: tuple[JobChange, ...] = ()
    """In their order, without those smaller than 1/256 of a card, until they add up to that."""


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """One run of a command on an emulated machine."""

    command: tuple[str, ...]
    gpu: str
    cards: int
    memory_bytes: int
    """Of one card."""
    status: Status
    message: str
    """Why it has no answer; empty if it has one."""
    exit_code: int
    """Negative: minus the number of a signal."""
    wall_s: float
    memory: JobMemory
    values: str
    """``"complete"``, or what the host read of the cards that a real one would have computed."""
    left: tuple[str, ...] = ()
    """Files outside of any folder of ours that its processes left, and that were removed."""
    substitutes: tuple[str, ...] = ()
    """A phrase for each model, tokenizer or data set that the machine lacks and a process has replaced."""
    ranks: int | None = None
    """How many workers of each group of equal ranks were to run; None means all."""
    ranks_chosen: bool = False
    """Whether the command line has not said so, and the machine does not hold all of them."""
    settings: tuple[str, ...] = ()
    """Keys of a framework's configuration that were set for this run, as ``"key=value"``."""


RANK = "-rank"
"""In the name of a run, before the rank."""

_NOT_REPORTED = "the driver does not report it"
_NO_HOST_MEMORY = "the kernel does not report it"
_NO_ESTIMATE = "no config= was given, or a callback kept the record"


class Watcher(StrEnum):
    """Who watched a run."""

    COMMAND = "command"
    """`python -m profiler.monitor`, from outside: the driver, the processes and the host."""
    CALLBACK = "callback"
    """`VramCallback`, in the process that trains: torch's counters and the driver."""


@dataclass(frozen=True, kw_only=True)
class MonitoredGpu:
    """One GPU during a run. None means that the driver does not report it."""

    index: int = field(
        metadata=column(
            "the GPU, in the order of CUDA_VISIBLE_DEVICES, from 0", name="gpu", unit="index", identifies=True
        )
    )
    uuid: str = field(metadata=column("the GPU as the driver names it"))
    name: str = field(metadata=column("name of the card"))
    memory_bytes: int = field(metadata=column("its memory as the driver reports it"))
    before_bytes: int | None = field(metadata=column("in use before the run, by other programs", _NOT_REPORTED))
    peak_used_bytes: int | None = field(
        metadata=column("most bytes in use by all programs, by samples: a lower bound", _NOT_REPORTED)
    )
    peak_process_bytes: int | None = field(
        metadata=column("most bytes in use by the run's own processes, by samples", _NOT_REPORTED)
    )
    mean_utilisation_percent: float | None = field(
        metadata=column("mean share of time in which a kernel ran", _NOT_REPORTED)
    )
    mean_power_watts: float | None = field(metadata=column("mean power of the card", _NOT_REPORTED))
    problem: str = field(default="", metadata=column("why sampling ended early", "it did not"))
    """Such as a lost GPU."""


@dataclass(frozen=True, kw_only=True)
class HostPeaks:
    """Memory of the host during a run."""

    tree_bytes: int | None = field(
        metadata=column(
            "most memory of its processes together, by samples", _NO_HOST_MEMORY, name="host_tree_peak_bytes"
        )
    )
    """Pages that they share are counted once for each process."""
    shared_bytes: int | None = field(
        default=None,
        metadata=column(
            "most of it that is shared at once, by samples: files, libraries and shared memory",
            _NO_HOST_MEMORY,
            name="host_shared_peak_bytes",
        ),
    )
    """Counted likewise. What is not shared is the need of each process by itself."""
    processes: int | None = field(
        metadata=column("most processes at once, by samples", "not sampled", name="host_processes", unit="processes")
    )
    used_bytes: int | None = field(
        metadata=column(
            "most memory in use on the whole host, by samples", _NO_HOST_MEMORY, name="host_used_peak_bytes"
        )
    )
    total_bytes: int | None = field(metadata=column("memory of the host", _NO_HOST_MEMORY, name="host_total_bytes"))


@dataclass(frozen=True, kw_only=True)
class HostSample:
    """One reading of the host."""

    time_s: float = field(metadata=column("since the start of sampling, on a monotonic clock"))
    processes: int = field(metadata=column("processes of the run", unit="processes"))
    tree_bytes: int = field(metadata=column("their resident memory; pages that they share count once for each"))
    used_bytes: int | None = field(metadata=column("memory in use on the whole host", _NO_HOST_MEMORY))
    shared_bytes: int | None = field(
        default=None,
        metadata=column("of tree_bytes, files, libraries and shared memory", "written by an earlier version"),
    )


@dataclass(frozen=True, kw_only=True)
class EstimateBeside:
    """The estimate of the job that was run."""

    peak_bytes: int = field(
        metadata=column("the peak by the closed form, in tensors", _NO_ESTIMATE, name="estimated_peak_bytes")
    )
    """Of a job of verl, everything that is counted on one GPU."""
    device_bytes: int | None = field(
        metadata=column(
            "the same as torch reserves it, with the assumed CUDA context",
            _NO_ESTIMATE,
            name="estimated_device_bytes",
        )
    )
    phase: str = field(metadata=column("the phase of the estimated peak", _NO_ESTIMATE, name="estimated_phase"))
    text: str
    """As `python -m profiler.estimate` shows it."""


@dataclass(frozen=True, kw_only=True)
class MonitoredRun(Run):
    """One monitored run with its outcome."""

    run_id: str = field(metadata=column("start of the run in UTC, and the number of its process", identifies=True))
    """To the millisecond: ``"20260131T090000123-4711"``. Of a rank of several processes it ends with ``"-rank1"``."""
    watcher: Watcher = field(
        metadata=column("command: from outside; callback: VramCallback, in the process that trains")
    )
    command: tuple[str, ...] = field(
        metadata=column("the words of the command or of the process, as a shell would take them", as_text=shlex.join)
    )
    started_at: str = field(metadata=column("when it began, in UTC"))
    """``"2026-01-31T09:00:00+00:00"``."""
    exit_code: int | None = field(
        metadata=column("as a shell would report it", "a callback kept the record", unit="exit code", is_signed=True)
    )
    gpus: tuple[MonitoredGpu, ...]
    host: HostPeaks = field(metadata=spread())
    estimate: EstimateBeside | None = field(metadata=spread())

    @property
    def rank(self) -> int | None:
        """The rank in a job of several processes; None in any other."""
        _, _, rank = self.run_id.partition(RANK)
        return int(rank) if rank.isdecimal() else None
