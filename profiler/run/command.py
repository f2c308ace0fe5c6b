"""The command line of `python -m profiler.run`: our options, a launcher, the script and its arguments, and the help."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePath

from profiler.config.options.command_words import own_words
from profiler.config.options.option import (
    FLAG,
    KNOWN_CARD,
    SECONDS,
    Kind,
    choice,
    count,
    option,
    options_of,
    path,
    read_options,
)
from profiler.config.options.reading import FieldReader, show, unknown_key
from profiler.config.options.run_options import option_lines
from profiler.config.options.value_grammar import read_into
from profiler.config.trials.specification import DEFAULT_GPU
from profiler.domain.cards.gpu_names import name_known_card
from profiler.domain.errors import FailIf, Fault, UsageError
from profiler.domain.runs.other_runs import COMPLETION_TOKENS, PROMPT_TOKENS, ScriptWeights
from profiler.run.launchers import Launch, command_faults, read_launch, split_launcher
from profiler.storage.files.foreign_files import Kind as FileKind
from profiler.storage.files.foreign_files import expanded, kind_of, reason

MOST_PROCESSES = 100_000
MOST_STEPS = 1_000_000
MOST_TOKENS = 1_000_000
MOST_CARDS = 64
"""Of the emulated driver (EM_MAX_CARDS in `emulated.h`)."""
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
class Cards:
    """The emulated cards of a machine."""

    count: int
    gpu: str

    def __str__(self) -> str:
        return f"{self.count}x{self.gpu}"


_CARDS = re.compile(r"(?:(\d+)x)?(.*)")
_LIKE_CARDS = re.compile(r"(\d+)\W*x?\W*(\D.*)")
"""Such as ``"8 x h100-80gb"`` and ``"8*h100-80gb"``."""


def _cards(reader: FieldReader, key: str) -> Cards | None:
    found = _CARDS.fullmatch(show(reader.value(key)))
    card = name_known_card(found[2] if found else "")
    meant = _LIKE_CARDS.fullmatch(show(reader.value(key)))
    if not card.name and meant and name_known_card(meant[2]).name:
        reader.fail(key, "is not a number and a card", f"Did you mean '{meant[1]}x{meant[2]}'?")
        return None
    if not card.name:
        reader.fail(key, f"names no card: it {card.problem}", card.hint or "Such as 8xh100-80gb.")
        return None
    count = int(found[1] or 1) if found else 0
    if not 1 <= count <= MOST_CARDS:
        reader.fail(key, f"must have 1 to {MOST_CARDS} cards", "Such as 8xh100-80gb.")
        return None
    return Cards(count=count, gpu=card.name)


CARDS: Kind[Cards | None] = Kind(allowed="a number and a card, such as 8xh100-80gb", shown="NxNAME", read=_cards)


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
        KNOWN_CARD,
        "the emulated or simulated card; with backend=cuda a smaller card, to which the real one is capped",
        null=f"{DEFAULT_GPU}; the whole real card",
    )
    gpus: Cards | None = option(
        None,
        CARDS,
        "emulated cards of a machine, on which a command is started as it stands, with every process that it starts",
        null="the script alone, on one card",
    )
    steps: int | None = option(
        3,
        count(maximum=MOST_STEPS),
        "end the script after N optimizer steps; with gpus=, each process that trains, but for Ray's",
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
    ranks: int | None = option(
        None,
        count(maximum=MOST_CARDS),
        "with gpus=, start only N workers of each worker group of verl, which answer for the others; N is the size of "
        "an engine (its tensor_model_parallel_size), or the number of all workers",
        unit="processes",
        null="all if the machine has a processor and 12 GiB of free memory for each, else those of one engine",
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
        False,
        FLAG,
        "name the largest tensors at the peak, and not only where an allocation fails; with gpus=, show what each "
        "process holds at the peak of each phase, by category",
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


OPTIONS = options_of(ScriptOptions)
"""By name."""


_INDENT = 20
"""Columns before the meaning of a key in the help text."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command line without faults."""

    options: ScriptOptions
    launch: Launch
    script: Path
    """Absolute."""
    arguments: tuple[str, ...]


JOBS_FOLDER = "jobs"
"""Folder of the results of commands, in `results_dir`."""


@dataclass(frozen=True, kw_only=True)
class JobEnd:
    """How a command ended."""

    exit_code: int
    """Negative: minus the number of a signal."""
    timed_out: bool
    wall_s: float
    left: tuple[str, ...]
    """Files that its processes left in shared memory and of sockets; they are removed."""


@dataclass(frozen=True, kw_only=True)
class JobCommand:
    """A command line without faults that starts a command on an emulated machine."""

    options: ScriptOptions
    cards: Cards
    words: tuple[str, ...]

    @property
    def name(self) -> str:
        """Of the script, if a word names one; else of the program."""
        script = next((word for word in self.words if word.endswith((".py", ".sh"))), self.words[0])
        return PurePath(script).stem


_OF_A_JOB = (
    "backend",
    "breakdown",
    "gpus",
    "ranks",
    "steps",
    "weights",
    "prompt_tokens",
    "completion_tokens",
    "python",
    "results_dir",
    "timeout_s",
    "fail_if",
    "strict",
)
"""Keys that a command on an emulated machine takes."""


def read_command(words: Sequence[str]) -> Command | JobCommand:
    """Parse `words` (argv without the program). Our keys end where `own_words` ends them.

    Raises:
        UsageError: Carries every fault found.
    """
    faults: list[Fault] = []
    own, others = own_words(words)
    values: dict[str, object] = {}
    for word in own:
        _read_word(word, values, faults)
    if values.get("gpus") is not None:
        return _job(values, others, faults)
    if "ranks" in values:
        hint = "Leave it out; num_processes= is the number of ranks of a script."
        faults.append(Fault(key="ranks", found=show(values["ranks"]), problem="needs gpus= and a command", hint=hint))
    launcher, rest = split_launcher(others)
    launch = read_launch(launcher, faults)
    script = _script(rest, launcher, faults)
    options = None
    try:
        options = read_options(ScriptOptions, values)
    except UsageError as error:
        faults.extend(error.faults)
    if options is None or script is None or faults:
        raise UsageError(tuple(dict.fromkeys(faults)))
    return Command(options=options, launch=launch, script=script, arguments=rest[1:])


def _job(values: dict[str, object], words: Sequence[str], faults: list[Fault]) -> JobCommand:
    for key in values.keys() - set(_OF_A_JOB):
        hint = "Leave it out, or gpus=, with which the script alone is run."
        faults.append(Fault(key=key, found=show(values[key]), problem="does not apply to a whole command", hint=hint))
    if values.get("backend", AUTO) not in (AUTO, ScriptBackend.EMULATED):
        hint = "Leave it out: the machine of gpus= is emulated."
        faults.append(Fault(key="backend", found=show(values["backend"]), problem="has no such machine", hint=hint))
    if not words:
        hint = "Such as gpus=2xh100-80gb torchrun --nproc_per_node=2 train.py."
        faults.append(Fault(key="command", found="none", problem="name a command to start", hint=hint))
    words = (*(("python",) if words and words[0].endswith(".py") else ()), *words)
    faults += command_faults(words)
    options = None
    try:
        options = read_options(ScriptOptions, values)
    except UsageError as error:
        faults.extend(error.faults)
    if options is None or options.gpus is None or faults:
        raise UsageError(tuple(dict.fromkeys(faults)))
    return JobCommand(options=options, cards=options.gpus, words=words)


_ARGUMENTS = "Arguments of the script come after its name."


def _read_word(word: str, values: dict[str, object], faults: list[Fault]) -> None:
    key, _, text = word.partition("=")
    if key not in OPTIONS:
        is_variable = key.isupper() and key.isidentifier()
        hint = f"A variable comes after env: env {word} COMMAND." if is_variable else _ARGUMENTS
        faults.append(unknown_key(key, text, OPTIONS, hint=hint))
        return
    if key == "gpu" and (several := _CARDS.fullmatch(text)) and several[1]:
        faults.append(Fault(key=key, found=text, problem="is one card", hint=f"gpus={text} has several."))
        return
    read_into(values, key, text, faults, OPTIONS[key].kind.read_text)


def _script(rest: Sequence[str], launcher: Sequence[str], faults: list[Fault]) -> Path | None:
    name = rest[0] if rest else ""
    if not name:
        after = f"after {' '.join(launcher[:2])} " if launcher else ""
        hint = "See python -m profiler.run --help."
        faults.append(Fault(key="script", found="none", problem=f"name a Python file {after}to run", hint=hint))
        return None
    problem, hint = _problem(name)
    if problem:
        faults.append(Fault(key="script", found=name, problem=problem, hint=hint))
        return None
    return expanded(name).absolute()


def _problem(name: str) -> tuple[str, str]:
    """Return why a word is not a script, and a hint; empty if it is one."""
    if name.startswith("-"):
        return "is an option, and a script comes first", "Our keys are written as key=value."
    try:
        kind = kind_of(expanded(name))
    except OSError as error:
        return f"cannot be read ({reason(error)})", ""
    if kind is FileKind.MISSING:
        if name.startswith("python"):
            return "no such file", "Leave it out: python=PATH chooses it."
        return "no such file", "Our keys are written as key=value." if name in OPTIONS else ""
    if kind is not FileKind.FILE:
        return f"is a {kind.value if kind is FileKind.FOLDER else 'device or a pipe'}, and a Python file is needed", ""
    if not name.endswith(".py"):
        return "is not a Python file (.py)", ""
    return "", ""


def usage() -> str:
    """Return the text."""
    return f"""\
python -m profiler.run [key=value ...] train.py [argument ...]
python -m profiler.run [key=value ...] torchrun [option ...] train.py
python -m profiler.run gpus=NxNAME [key=value ...] command [word ...]

Run a PyTorch training script as it is and show its GPU memory by phase:
measured on a GPU, or emulated or simulated without one. Our keys (key=value or
--key value) end at the first other word, or at "--"; the words after the script
are its own.
torchrun, accelerate launch and deepspeed in front of the script are understood.
With gpus= any command is started as it stands, and each process that uses a
card has its peaks.

{option_lines(OPTIONS.values(), indent=_INDENT)}
The results are a table, <results_dir>/scripts/<script>/report.html, parquet
files and records (docs/scripts.md). Exit codes: docs/exit_codes.md.

Examples:
  python -m profiler.run train.py --learning_rate 1e-5
  python -m profiler.run gpu=rtx-4090-24gb steps=2 train.py config/small.py
  python -m profiler.run backend=emulated torchrun --nproc_per_node=8 train.py
  python -m profiler.run gpus=2xl40s-48gb torchrun --nproc_per_node=2 train.py
  python -m profiler.run snapshot=true breakdown=true train.py
"""
