"""The parsed command line of a replay: paths, and key=value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from profiler.allocator.settings.alloc_conf import parse_alloc_conf
from profiler.config.command_words import HELP_FLAGS, as_pairs
from profiler.config.option import FORMAT, OutputFormat, read_format
from profiler.config.reading import TextReader, show
from profiler.domain.errors import Fault, UsageError, nearest
from profiler.domain.gpu import Gpu
from profiler.domain.gpu_names import find_gpu, name_card

ALLOC_CONF, DEVICE, FIGURE, GPU = "alloc_conf", "device", "figure", "gpu"
KEYS = (ALLOC_CONF, DEVICE, FIGURE, FORMAT, GPU)
FIGURE_SUFFIXES = (".png", ".svg")
_LARGEST_DEVICE = 1023


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
    own: dict[str, str] = {}
    for word in as_pairs(words):
        key, equals, text = word.partition("=")
        if word in HELP_FLAGS:
            command.wants_help = True
        elif equals and key in KEYS:
            own[key] = text
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
    _read(command, own)
    if not command.paths and "" not in words:
        hint = "Write: python -m profiler.replay snapshot.pickle"
        command.faults.append(Fault(key="snapshot", found="none", problem="name a file or a folder", hint=hint))
    return command


def _read(command: Command, own: Mapping[str, str]) -> None:
    """Read the values of our keys. Settings of an allocator have commas, and are taken as they stand."""
    reader = TextReader(own, paths=(ALLOC_CONF, FIGURE))
    if reader.value(ALLOC_CONF) is not None:
        command.alloc_conf = str(reader.value(ALLOC_CONF))
        try:
            parse_alloc_conf(command.alloc_conf)
        except UsageError as error:
            command.faults.extend(error.faults)
    if DEVICE in own:
        command.device = reader.count(DEVICE, minimum=0, maximum=_LARGEST_DEVICE)
    if reader.value(FIGURE) is not None:
        command.figure = Path(
            reader.text(FIGURE, "a path that ends in .png or .svg, or a folder for several snapshots")
        )
    if GPU in own:
        card = name_card(show(reader.value(GPU)))
        command.gpu = find_gpu(card.name)
        if command.gpu is None:
            reader.fail(GPU, card.problem, card.hint)
    if FORMAT in own:
        command.output_format = read_format(reader)
    command.faults.extend(reader.faults)


def _hint(word: str) -> str:
    key = word.lstrip("-").partition("=")[0].replace("-", "_")
    return f"Write {key}=... instead." if key in KEYS else ""
