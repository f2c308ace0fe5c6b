"""The parsed command line of a replay: paths, and key=value."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from profiler.allocator.alloc_conf import parse_alloc_conf
from profiler.domain.errors import Fault, UsageError, nearest
from profiler.domain.gpu import Gpu
from profiler.domain.gpu_names import find_gpu, name_card

ALLOC_CONF, DEVICE, FIGURE, FORMAT, GPU = "alloc_conf", "device", "figure", "format", "gpu"
KEYS = (ALLOC_CONF, DEVICE, FIGURE, FORMAT, GPU)
FIGURE_SUFFIXES = (".png", ".svg")
_MOST_DEVICES = 1024


class OutputFormat(StrEnum):
    """Values of `format`."""

    TABLE = "table"
    JSON = "json"


@dataclass(kw_only=True)
class Command:
    """A parsed command line; its errors are in `faults`."""

    paths: list[Path] = field(default_factory=list)
    """Snapshots, and folders of them."""
    alloc_conf: str | None = None
    gpu: Gpu | None = None
    device: int | None = None
    figure: Path | None = None
    """A file for one snapshot, a folder for several."""
    output_format: OutputFormat = OutputFormat.TABLE
    wants_help: bool = False
    faults: list[Fault] = field(default_factory=list)


def read_command(words: Sequence[str]) -> Command:
    """Parse `words` (argv without the program). If a key is repeated, the last value counts."""
    command = Command()
    for word in words:
        key, equals, text = word.partition("=")
        if word in ("-h", "--help"):
            command.wants_help = True
        elif equals and key in KEYS:
            _read(command, key, text)
        elif equals and key.isidentifier() and not Path(word).exists():
            problem = f"unknown key; the keys are {', '.join(KEYS)}"
            command.faults.append(Fault(key=key, found=text, problem=problem, hint=nearest(key, KEYS)))
        elif word.startswith("-"):
            problem = "options are written as key=value"
            command.faults.append(Fault(key="argument", found=word, problem=problem, hint=_hint(word)))
        elif word:
            command.paths.append(Path(word))
        else:
            command.faults.append(Fault(key="snapshot", found="(nothing)", problem="must be a file or a folder"))
    if not command.paths and "" not in words:
        hint = "Write: python -m profiler.replay snapshot.pickle"
        command.faults.append(Fault(key="snapshot", found="none", problem="name a file or a folder", hint=hint))
    return command


def _read(command: Command, key: str, text: str) -> None:
    match key:
        case "alloc_conf":
            command.alloc_conf = text
            try:
                parse_alloc_conf(text)
            except UsageError as error:
                command.faults.extend(error.faults)
        case "device":
            if text.isascii() and text.isdecimal() and len(text) < len(str(_MOST_DEVICES)) + 1:
                command.device = int(text)
            else:
                command.faults.append(Fault(key=key, found=text, problem="must be the number of a device, from 0 on"))
        case "figure":
            command.figure = Path(text)
            if not text:
                problem = "must be a path that ends in .png or .svg, or a folder for several snapshots"
                command.faults.append(Fault(key=key, found="", problem=problem))
        case "gpu":
            card = name_card(text)
            command.gpu = find_gpu(card.name)
            if command.gpu is None:
                command.faults.append(Fault(key=key, found=text, problem=card.problem, hint=card.hint))
        case "format":
            if text in list(OutputFormat):
                command.output_format = OutputFormat(text)
            else:
                _one_of(command, key, text, [str(member) for member in OutputFormat])


def _one_of(command: Command, key: str, text: str, names: Sequence[str]) -> None:
    problem = f"must be one of {', '.join(names)}"
    command.faults.append(Fault(key=key, found=text, problem=problem, hint=nearest(text, names)))


def _hint(word: str) -> str:
    key = word.lstrip("-").partition("=")[0].replace("-", "_")
    return f"Write {key}=... instead." if key in KEYS else ""
