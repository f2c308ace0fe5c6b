"""The command line of the campaign: what to do, its words, and key=value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from maintenance.campaign.stages import STAGES, Stage, stage
from profiler.config.options.command_words import as_pairs
from profiler.config.options.option import MAX_S
from profiler.config.options.reading import TextReader
from profiler.domain.errors import Fault, UsageError, nearest
from profiler.domain.trials.trial import Backend, Tuning
from profiler.storage.files.foreign_files import Kind, expanded, kind_of, reason

LIMIT_S = 500.0
"""Time limit of one stage."""

USAGE = f"""\
python -m maintenance.campaign WHAT [word ...] [key=value ...]

The campaign on a real card (docs/campaign.md); scripts/campaign.sh runs it.
WHAT is one of:

  list                      the stages, one per line
  stage LETTER FOLDER       run one stage, and pack the folder at its end
  facts FOLDER              names, versions, context, workspaces, three metrics
  allocator_truth TUNING FOLDER
                            record the allocations of a trial and replay them;
                            TUNING is full or lora
  rollouts FOLDER           trials with both rollouts, side by side
  looking FOLDER ...        step times at different sampling periods
  simulate FOLDER           simulate the measured trials into the same folder
  emulate FOLDER            the same on emulated cards
  thresholds FOLDER ...     measured and simulated trials, and the thresholds
  keep FOLDER [FOLDER] KEPT rows, facts, page and figure of a campaign, in the
                            folder KEPT of results/reference; the second folder
                            has the trials simulated after a correction

Keys of stage; further keys go to each of its sweeps:
  limit_s={LIMIT_S:g}               the stage ends by then; the same command goes on
  archive=PATH              folder of the archive's parts: read first, written
                            at the end

Key of simulate and emulate:
  python=PATH               the Python that runs the trials

Examples:
  python -m maintenance.campaign list
  python -m maintenance.campaign stage A ../campaign limit_s=300
  python -m maintenance.campaign thresholds ../campaign
"""

_FOLDERS: Mapping[str, tuple[int, int | None]] = {
    "list": (0, 0),
    "stage": (1, 1),
    "facts": (1, 1),
    "allocator_truth": (1, 1),
    "rollouts": (1, 1),
    "looking": (1, None),
    "simulate": (1, 1),
    "emulate": (1, 1),
    "thresholds": (1, None),
    "keep": (2, 3),
}
"""Least and most folders of each command; None: any number."""

_WANTED: Mapping[int | None, str] = {0: "no folder", 1: "one folder", 3: "two or three folders"}
"""By the most folders of a command."""

_FIRST_WORD: Mapping[str, str] = {"stage": "LETTER", "allocator_truth": "TUNING"}
"""Commands with a word before their folder."""

PREDICTED: Mapping[str, Backend] = {"simulate": Backend.SIMULATED, "emulate": Backend.EMULATED}
"""Commands that predict what was measured."""

_MUST_EXIST = (*PREDICTED, "thresholds", "keep")
_HINT = "Write: scripts/campaign.sh list"
_TUNINGS = (Tuning.FULL, Tuning.LORA)


@dataclass(kw_only=True)
class Command:
    """A parsed command line without faults."""

    what: str
    folders: list[Path] = field(default_factory=list)
    stage: Stage | None = None
    tuning: Tuning | None = None
    limit_s: float = LIMIT_S
    archive: Path | None = None
    python: Path | None = None
    """The Python of predicted trials; None for this one, or the emulation's."""
    keys: list[str] = field(default_factory=list)
    """Further `key=value` for each sweep of a stage."""

    @property
    def folder(self) -> Path:
        """The only folder."""
        return self.folders[0]


def read_command(words: Sequence[str]) -> Command:
    """Parse `words` (argv without the program).

    Raises:
        UsageError: With every fault that was found.
    """
    what = words[0] if words else ""
    if what not in _FOLDERS:
        problem = f"must be one of {', '.join(_FOLDERS)}"
        hint = nearest(what, tuple(_FOLDERS)) or _HINT
        raise UsageError([Fault(key="command", found=what or "(none)", problem=problem, hint=hint)])
    command, faults = Command(what=what), list[Fault]()
    others = as_pairs(words[1:])
    plain = [word for word in others if not _is_key(word)]
    for word in filter(_is_key, others):
        _read_key(command, word, faults)
    if what in _FIRST_WORD:
        _read_first(command, plain.pop(0) if plain else "", faults)
    _read_folders(command, plain, faults)
    if faults:
        raise UsageError(faults)
    return command


def _is_key(word: str) -> bool:
    return "=" in word and not word.startswith(("/", "."))


def _read_key(command: Command, word: str, faults: list[Fault]) -> None:
    key, _, text = word.partition("=")
    if command.what in PREDICTED and key == "python" and text:
        command.python = Path(text)
    elif command.what != "stage" or not key or key.startswith("-"):
        problem = "is not of the form key=value" if not key or key.startswith("-") else f"{command.what} has no keys"
        faults.append(Fault(key="argument", found=word, problem=problem))
    elif key == "limit_s":
        command.limit_s = _seconds(text, faults)
    elif key == "archive":
        if text:
            command.archive = _folder("archive", text, faults)
        else:
            faults.append(Fault(key=key, found="(nothing)", problem="must be a folder"))
    else:
        command.keys.append(word)


def _seconds(text: str, faults: list[Fault]) -> float:
    most = MAX_S
    reader = TextReader({"limit_s": text})
    found = reader.number("limit_s", maximum=most)
    if found and not reader.faults:
        return found
    problem = f"must be a number of seconds above 0 and at most {most:,}"
    faults.append(Fault(key="limit_s", found=text or "(nothing)", problem=problem))
    return LIMIT_S


def _read_first(command: Command, word: str, faults: list[Fault]) -> None:
    if command.what == "stage":
        command.stage = stage(word)
        letters = [one.letter for one in STAGES]
        if command.stage is None:
            problem = f"must be one of {', '.join(letters)}"
            faults.append(Fault(key="stage", found=word or "(none)", problem=problem, hint=_HINT))
        return
    command.tuning = next((one for one in _TUNINGS if one == word), None)
    if command.tuning is None:
        faults.append(Fault(key="tuning", found=word or "(none)", problem=f"must be one of {', '.join(_TUNINGS)}"))


def _read_folders(command: Command, words: Sequence[str], faults: list[Fault]) -> None:
    least, most = _FOLDERS[command.what]
    if len(words) < least or (most is not None and len(words) > most):
        wanted = _WANTED.get(most, "at least one folder")
        found = " ".join(words) or "(none)"
        hint = _HINT
        faults.append(Fault(key="folder", found=found, problem=f"{command.what} takes {wanted}", hint=hint))
        return
    must_exist = command.what in _MUST_EXIST
    command.folders = [
        _folder("folder", word, faults, must_exist=must_exist and word != _written(command, words)) for word in words
    ]


def _written(command: Command, words: Sequence[str]) -> str | None:
    """The folder that the command makes."""
    return words[-1] if command.what == "keep" else None


def _folder(key: str, text: str, faults: list[Fault], *, must_exist: bool = False) -> Path:
    try:
        path = expanded(text)
        kind = kind_of(path)
    except OSError as error:
        faults.append(Fault(key=key, found=text, problem=f"cannot be used ({reason(error)})"))
        return Path(text)
    if kind not in (Kind.FOLDER, Kind.MISSING) or not text:
        faults.append(Fault(key=key, found=text or "(nothing)", problem="must be a folder"))
    elif kind is Kind.MISSING and must_exist:
        faults.append(Fault(key=key, found=text, problem="no such folder"))
    return path
