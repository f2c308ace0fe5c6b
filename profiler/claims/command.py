"""The parsed command line of `claims`: key=value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from profiler.config.command_words import HELP_FLAGS, as_pairs
from profiler.config.option import FORMAT, OutputFormat, read_format
from profiler.config.reading import TextReader
from profiler.domain.claims import Claim
from profiler.domain.errors import Fault, nearest

RESULTS_DIR, CLAIM, SOURCE, WRITE = "results_dir", "claim", "source", "write"
KEYS = (RESULTS_DIR, CLAIM, SOURCE, FORMAT, WRITE)


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
    own: dict[str, str] = {}
    for word in as_pairs(words):
        key, equals, text = word.partition("=")
        if word in HELP_FLAGS:
            command.wants_help = True
        elif equals and key in KEYS:
            own[key] = text
        elif equals:
            problem = f"unknown key; the keys are {', '.join(KEYS)}"
            command.faults.append(Fault(key=key, found=text, problem=problem, hint=nearest(key, KEYS)))
        else:
            problem = "is not of the form key=value"
            command.faults.append(Fault(key="argument", found=word or "(nothing)", problem=problem, hint=_hint(word)))
    _read(command, own, claims)
    if command.claim is not None and command.source is not None:
        problem = "names one claim, so that source has no meaning"
        command.faults.append(Fault(key=CLAIM, found=command.claim, problem=problem, hint="Leave source out."))
    return command


def _read(command: Command, own: Mapping[str, str], claims: Sequence[Claim]) -> None:
    reader = TextReader(own, paths=(RESULTS_DIR,))
    sources = list(dict.fromkeys(claim.source.id for claim in claims))
    if RESULTS_DIR in own:
        command.results_dir = Path(reader.text(RESULTS_DIR, "a folder"))
    if CLAIM in own:
        word = reader.word(CLAIM, [claim.id for claim in claims])
        command.claim = word if reader.sound(CLAIM) else None
    if SOURCE in own:
        word = reader.word(SOURCE, sources)
        command.source = word if reader.sound(SOURCE) else None
    if FORMAT in own:
        command.output_format = read_format(reader)
    if WRITE in own:
        command.writes = reader.flag(WRITE)
    command.faults.extend(reader.faults)


def _hint(word: str) -> str:
    key = word.lstrip("-").replace("-", "_")
    return f"Write {key}=..." if key in KEYS else ""
