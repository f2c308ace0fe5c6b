"""The nouns of `python -m profiler.run`: a training script, how it is run, and the record of one run."""

from dataclasses import dataclass
from enum import StrEnum

from profiler.domain.outcome import Outcome, Status, Versions
from profiler.domain.trial import Backend


class ScriptWeights(StrEnum):
    """Where a script's models get their values from."""

    RANDOM = "random"
    """Models are built from their configuration; no checkpoint is read."""
    CHECKPOINT = "checkpoint"
    """As the script has it."""


PROMPT_TOKENS, COMPLETION_TOKENS = 256, 512
"""Lengths in the rows of a data set that is replaced, by default: together shorter than 1,024 tokens, the default limit
of trl's trainers, of which some drop longer rows."""


@dataclass(frozen=True, kw_only=True)
class ScriptSpec:
    """A script and everything that the user said about its run."""

    script: str
    """Path of the script, absolute."""
    arguments: tuple[str, ...] = ()
    """The words after the script."""
    launcher: tuple[str, ...] = ()
    """The words in front of the script, such as ``("torchrun", "--nproc_per_node=8")``; empty without a launcher."""
    backend: Backend
    gpu: str | None = None
    """The emulated or simulated card, or the card that a larger real one is capped to; None for the whole real card."""
    steps: int | None = None
    """Optimizer steps after which the script is ended; None lets it run to its end."""
    num_processes: int = 1
    """Ranks of a distributed job, of which the script is rank 0."""
    weights: ScriptWeights = ScriptWeights.RANDOM
    """Whether models have random weights, or those of their checkpoints."""
    prompt_tokens: int = PROMPT_TOKENS
    """Tokens of each prompt in the rows of a data set that is replaced."""
    completion_tokens: int = COMPLETION_TOKENS
    """Tokens of each completion in these rows; a text has those of a prompt and of a completion."""
    alloc_conf: str = ""
    """Settings of torch's allocator, as PYTORCH_ALLOC_CONF has them."""


@dataclass(frozen=True, kw_only=True)
class ScriptEnding:
    """How a script ended."""

    exit_code: int
    """As Python would have ended; 0 if the script was ended after its steps."""
    by_steps: bool
    """Whether it was ended after `ScriptSpec.steps` optimizer steps, and not by itself."""


@dataclass(frozen=True, kw_only=True)
class HeldTensors:
    """Memory on the card that came from one place of the program."""

    size_bytes: int
    tensors: int
    name: str
    """Such as ``"gradient of layers.*.mlp.weight"``; empty where unknown."""
    line: str
    """Line of the script or of a file next to it, ``"train.py:41"``; empty where unknown, as in a backward pass."""
    library: str
    """Innermost line of another library than torch, ``"modeling_qwen2.py:48"``; empty where there is none."""


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
    card: NamedCard | None = None
    """The real card, or the emulated one of unlimited memory; None if the specification names the card."""


@dataclass(frozen=True, kw_only=True)
class LateEvents:
    """The peaks of an emulated run whose events are reached late: when host and card have met."""

    status: Status
    allocated_bytes: int | None
    reserved_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class ScriptRecord:
    """One run of a script with its outcome; stored as one file."""

    run_id: str
    """Content hash of the specification, the script's text and the versions."""
    spec: ScriptSpec
    script_sha256: str
    """Of the script's text."""
    substitutes: tuple[str, ...] = ()
    """A phrase for each model, tokenizer or data set that this machine lacks and that was replaced."""
    ending: ScriptEnding | None = None
    """How the script ended; None if its process ended without a word."""
    largest: tuple[HeldTensors, ...] = ()
    """The largest tensors on the card when an allocation failed, largest first; empty if none failed."""
    late_events: LateEvents | None = None
    """The other bound of an emulated run; None if it was not asked for, or if the run did not end well."""
    versions: Versions
    outcome: Outcome
