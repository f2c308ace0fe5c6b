"""The parsed command line of `claims`: key=value."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from profiler.domain.claims import Claim
from profiler.domain.errors import Fault, nearest

RESULTS_DIR, CLAIM, SOURCE, FORMAT, WRITE = "results_dir", "claim", "source", "format", "write"
KEYS = (RESULTS_DIR, CLAIM, SOURCE, FORMAT, WRITE)


class OutputFormat(StrEnum):
    """Values of `format`."""

    TABLE = "table"
    JSON = "json"


@dataclass(kw_only=True)
class Command:
    """A parsed command line; its errors are in `faults`."""

    results_dir: Path = Path("results")
    claim: str | None = None
    """The only claim to judge, by its id."""
    source: str | None = None
    """The only text whose claims are judged, by its id."""
    output_format: OutputFormat = OutputFormat.TABLE
    writes: bool = True
    """Whether the page is written next to the trials."""
    wants_help: bool = False
    faults: list[Fault] = field(default_factory=list)


def read_command(words: Sequence[str], claims: Sequence[Claim]) -> Command:
    """Parse `words` (argv without the program). If a key is repeated, the last value counts."""
    command = Command()
    for word in words:
        key, equals, text = word.partition("=")
        if word in ("-h", "--help"):
            command.wants_help = True
        elif equals and key in KEYS:
            _read(command, key, text, claims)
        elif equals:
            problem = f"unknown key; the keys are {', '.join(KEYS)}"
            command.faults.append(Fault(key=key, found=text, problem=problem, hint=nearest(key, KEYS)))
        else:
            problem = "is not of the form key=value"
            command.faults.append(Fault(key="argument", found=word or "(nothing)", problem=problem, hint=_hint(word)))
    if command.claim is not None and command.source is not None:
        problem = "names one claim, so that source has no meaning"
        command.faults.append(Fault(key=CLAIM, found=command.claim, problem=problem, hint="Leave source out."))
    return command


def _read(command: Command, key: str, text: str, claims: Sequence[Claim]) -> None:
    if key == RESULTS_DIR:
        command.results_dir = Path(text)
        if not text:
            command.faults.append(Fault(key=key, found="(nothing)", problem="must be a folder"))
    elif key == CLAIM:
        command.claim = _one_of(command, key, text, [claim.id for claim in claims])
    elif key == SOURCE:
        command.source = _one_of(command, key, text, list(dict.fromkeys(claim.source.id for claim in claims)))
    elif key == FORMAT:
        found = _one_of(command, key, text, [str(member) for member in OutputFormat])
        command.output_format = OutputFormat(found or OutputFormat.TABLE)
    else:
        command.writes = _one_of(command, key, text, ["true", "false"]) != "false"


def _one_of(command: Command, key: str, text: str, names: Sequence[str]) -> str | None:
    if text in names:
        return text
    problem = f"must be one of {', '.join(names)}"
    command.faults.append(Fault(key=key, found=text or "(nothing)", problem=problem, hint=nearest(text, names)))
    return None


def _hint(word: str) -> str:
    key = word.lstrip("-").replace("-", "_")
    return f"Write {key}=..." if key in KEYS else ""
