"""The keys of `python -m profiler.run`: each is declared once, and the help text and the reader derive from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath

from profiler.config.reading import FieldReader, show
from profiler.config.specification import DEFAULT_GPU
from profiler.domain.errors import FailIf, UsageError
from profiler.domain.gpu_names import name_known_card
from profiler.domain.script import COMPLETION_TOKENS, PROMPT_TOKENS, ScriptWeights

_MOST_S = 1_000_000
MOST_PROCESSES = 100_000
MOST_STEPS = 1_000_000
MOST_TOKENS = 1_000_000
AUTO = "auto"


class ScriptBackend(StrEnum):
    """Values of `backend`."""

    AUTO = AUTO
    CUDA = "cuda"
    EMULATED = "emulated"
    SIMULATED = "simulated"


class ScriptEvents(StrEnum):
    """Values of `events`."""

    EARLY = "early"
    BOTH = "both"


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """What a user has to know about a key."""

    values: str
    """What is allowed."""
    meaning: str
    default: object
    shown: str
    """The default as a user reads it."""
    unit: str = ""
    is_path: bool = False
    """Whether the value is a path, which is taken as it stands."""


KEYS: Mapping[str, Declaration] = {
    "backend": Declaration(
        values="|".join(ScriptBackend),
        meaning="cuda where a GPU is, emulated where a CUDA build of torch is at hand, simulated otherwise",
        default=AUTO,
        shown=AUTO,
    ),
    "gpu": Declaration(
        values="NAME",
        meaning="the emulated or simulated card; with backend=cuda a smaller card, to which the real one is capped",
        default=None,
        shown=f"{DEFAULT_GPU}; the whole real card",
    ),
    "steps": Declaration(
        values="N|null",
        meaning="end the script after N optimizer steps; null: let it run to its end",
        default=3,
        shown="3",
        unit="optimizer steps",
    ),
    "num_processes": Declaration(
        values="N",
        meaning="ranks of the distributed job, of which the script is rank 0; not with backend=cuda",
        default=None,
        shown="what the launcher says, or 1",
        unit="processes",
    ),
    "weights": Declaration(
        values="|".join(ScriptWeights),
        meaning="random: build models from their configuration; checkpoint: read what the script names",
        default=ScriptWeights.RANDOM.value,
        shown=ScriptWeights.RANDOM,
    ),
    "prompt_tokens": Declaration(
        values="N",
        meaning="length of each prompt in a data set that is replaced, because it is not here",
        default=PROMPT_TOKENS,
        shown=str(PROMPT_TOKENS),
        unit="tokens",
    ),
    "completion_tokens": Declaration(
        values="N",
        meaning="length of each completion in such a data set; a text has both lengths",
        default=COMPLETION_TOKENS,
        shown=str(COMPLETION_TOKENS),
        unit="tokens",
    ),
    "events": Declaration(
        values="|".join(ScriptEvents),
        meaning="with backend=emulated, when memory that another stream used returns: early; both: run once more with "
        "late events, and report both peaks",
        default=None,
        shown="both with several processes, else early",
    ),
    "python": Declaration(
        values="PATH",
        meaning="the Python that runs the script",
        default=None,
        shown="this one; emulated: that of python -m profiler.emulation install",
        is_path=True,
    ),
    "breakdown": Declaration(
        values="true|false",
        meaning="name the largest tensors at the peak, and not only where an allocation fails",
        default=False,
        shown="false",
    ),
    "snapshot": Declaration(
        values="true|false",
        meaning="write a memory snapshot for torch's memory viewer and python -m profiler.replay",
        default=False,
        shown="false",
    ),
    "results_dir": Declaration(
        values="FOLDER",
        meaning="the results are in FOLDER/scripts/<name of the script>/",
        default="results",
        shown="results",
        is_path=True,
    ),
    "timeout_s": Declaration(
        values="SECONDS", meaning="time limit of the script", default=1800.0, shown="1800", unit="s"
    ),
    "sample_period_s": Declaration(
        values="SECONDS|null",
        meaning="period at which the driver is sampled with backend=cuda; null: no samples",
        default=0.01,
        shown="0.01",
        unit="s",
    ),
    "fail_if": Declaration(
        values="does_not_fit|null",
        meaning="does_not_fit: end with exit code 4 if the script ran out of GPU memory",
        default=None,
        shown="null",
    ),
    "strict": Declaration(
        values="true|false",
        meaning="refuse a torch or an entry point of the driver that was never emulated; false: go on, and say so",
        default=True,
        shown="true",
    ),
}
"""By name, in the order of the help text."""


@dataclass(frozen=True, kw_only=True)
class ScriptOptions:
    """The values of the keys."""

    backend: ScriptBackend
    gpu: str | None
    steps: int | None
    num_processes: int | None
    weights: ScriptWeights
    prompt_tokens: int
    completion_tokens: int
    events: ScriptEvents | None
    """None: both bounds with several processes, else the early one."""
    python: PurePath | None
    breakdown: bool
    snapshot: bool
    results_dir: PurePath
    timeout_s: float
    sample_period_s: float | None
    fails_if_too_large: bool
    """Whether a script that ran out of memory ends with exit code 4."""
    strict: bool


def read_options(values: Mapping[str, object]) -> ScriptOptions:
    """Read the keys that a user gave; the others have their defaults.

    Raises:
        UsageError: Carries every fault found.
    """
    reader = FieldReader({name: key.default for name, key in KEYS.items()} | dict(values))
    gpu = None if reader.value("gpu") is None else _card(reader)
    python = None if reader.value("python") is None else reader.text("python", "the path of a program")
    steps = None if reader.value("steps") is None else reader.count("steps", maximum=MOST_STEPS)
    processes = reader.optional_count("num_processes", maximum=MOST_PROCESSES)
    timeout_s = _seconds(reader, "timeout_s")
    period_s = None if reader.value("sample_period_s") is None else _seconds(reader, "sample_period_s")
    options = ScriptOptions(
        backend=reader.choice("backend", ScriptBackend),
        gpu=gpu,
        steps=steps,
        num_processes=processes,
        weights=reader.choice("weights", ScriptWeights),
        prompt_tokens=reader.count("prompt_tokens", maximum=MOST_TOKENS),
        completion_tokens=reader.count("completion_tokens", maximum=MOST_TOKENS),
        events=None if reader.value("events") is None else reader.choice("events", ScriptEvents),
        python=None if python is None else PurePath(python),
        breakdown=reader.flag("breakdown"),
        snapshot=reader.flag("snapshot"),
        results_dir=PurePath(reader.text("results_dir", "a folder")),
        timeout_s=timeout_s,
        sample_period_s=period_s,
        fails_if_too_large=reader.value("fail_if") is not None and bool(reader.word("fail_if", [FailIf.DOES_NOT_FIT])),
        strict=reader.flag("strict"),
    )
    if reader.faults:
        raise UsageError(reader.faults)
    return options


def _card(reader: FieldReader) -> str | None:
    card = name_known_card(show(reader.value("gpu")))
    if not card.name:
        reader.fail("gpu", card.problem, card.hint)
    return card.name or None


def _seconds(reader: FieldReader, key: str) -> float:
    value = reader.number(key, maximum=_MOST_S)
    if value == 0 and reader.sound(key):
        reader.fail(key, "must be more than 0 seconds")
    return value
