"""The keys of `python -m profiler.run`: each is declared once, and the help text and the reader derive from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath

from profiler.config.reading import FieldReader, show
from profiler.config.specification import DEFAULT_GPU
from profiler.domain.errors import UsageError
from profiler.domain.gpu_names import name_known_card
from profiler.domain.script import ScriptWeights

_MOST_S = 1_000_000
MOST_PROCESSES = 100_000
MOST_STEPS = 1_000_000
AUTO = "auto"


class ScriptBackend(StrEnum):
    """Values of `backend`."""

    AUTO = AUTO
    CUDA = "cuda"
    EMULATED = "emulated"
    SIMULATED = "simulated"


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
    "python": Declaration(
        values="PATH",
        meaning="the Python that runs the script",
        default=None,
        shown="this one; emulated: that of python -m profiler.emulation install",
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
    python: PurePath | None
    breakdown: bool
    snapshot: bool
    results_dir: PurePath
    timeout_s: float
    sample_period_s: float | None
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
        python=None if python is None else PurePath(python),
        breakdown=reader.flag("breakdown"),
        snapshot=reader.flag("snapshot"),
        results_dir=PurePath(reader.text("results_dir", "a folder")),
        timeout_s=timeout_s,
        sample_period_s=period_s,
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
