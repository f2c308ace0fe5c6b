"""The options of `python -m profiler.run`."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath

from profiler.config.option import FLAG, SECONDS, Kind, choice, count, option, options_of, path
from profiler.config.reading import FieldReader, show
from profiler.config.specification import DEFAULT_GPU
from profiler.domain.errors import FailIf
from profiler.domain.gpu_names import name_known_card
from profiler.domain.script import COMPLETION_TOKENS, PROMPT_TOKENS, ScriptWeights

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


def _card(reader: FieldReader, key: str) -> str | None:
    card = name_known_card(show(reader.value(key)))
    if not card.name:
        reader.fail(key, card.problem, card.hint)
    return card.name or None


_CARD = Kind(allowed="the name of a card", shown="NAME", read=_card)


@dataclass(frozen=True, kw_only=True)
class ScriptOptions:
    """The options, in the order of the help text."""

    backend: ScriptBackend = option(
        ScriptBackend.AUTO,
        choice(ScriptBackend),
        "cuda where a GPU is, emulated where a CUDA build of torch is at hand, simulated otherwise",
    )
    gpu: str | None = option(
        None,
        _CARD,
        "the emulated or simulated card; with backend=cuda a smaller card, to which the real one is capped",
        null=f"{DEFAULT_GPU}; the whole real card",
    )
    steps: int | None = option(
        3,
        count(maximum=MOST_STEPS),
        "end the script after N optimizer steps",
        unit="optimizer steps",
        null="let it run to its end",
    )
    num_processes: int | None = option(
        None,
        count(maximum=MOST_PROCESSES),
        "ranks of the distributed job, of which the script is rank 0; not with backend=cuda",
        unit="processes",
        null="what the launcher says, or 1",
    )
    weights: ScriptWeights = option(
        ScriptWeights.RANDOM,
        choice(ScriptWeights),
        "random: build models from their configuration; checkpoint: read what the script names",
    )
    prompt_tokens: int = option(
        PROMPT_TOKENS,
        count(maximum=MOST_TOKENS),
        "length of each prompt in a data set that is replaced, because it is not here",
        unit="tokens",
    )
    completion_tokens: int = option(
        COMPLETION_TOKENS,
        count(maximum=MOST_TOKENS),
        "length of each completion in such a data set; a text has both lengths",
        unit="tokens",
    )
    events: ScriptEvents | None = option(
        None,
        choice(ScriptEvents),
        "with backend=emulated, when memory that another stream used returns: early; both: run once more with late "
        "events, and report both peaks",
        null="both with several processes, else early",
    )
    python: PurePath | None = option(
        None,
        path("the path of a program", "PATH"),
        "the Python that runs the script",
        null="this one; emulated: that of python -m profiler.emulation install",
    )
    breakdown: bool = option(
        False, FLAG, "name the largest tensors at the peak, and not only where an allocation fails"
    )
    snapshot: bool = option(
        False, FLAG, "write a memory snapshot for torch's memory viewer and python -m profiler.replay"
    )
    results_dir: PurePath = option(
        PurePath("results"),
        path("a folder", "FOLDER"),
        "the results are in FOLDER/scripts/<name of the script>/",
    )
    timeout_s: float = option(1800.0, SECONDS, "time limit of the script", unit="s")
    sample_period_s: float | None = option(
        0.01, SECONDS, "period at which the driver is sampled with backend=cuda", unit="s", null="no samples"
    )
    fail_if: FailIf | None = option(
        None,
        choice(FailIf, FailIf.DOES_NOT_FIT),
        "does_not_fit: end with exit code 4 if the script ran out of GPU memory",
        null="exit code 0",
    )
    strict: bool = option(
        True,
        FLAG,
        "refuse a torch or an entry point of the driver that was never emulated; false: go on, and say so",
    )


KEYS = options_of(ScriptOptions)
"""By name."""
