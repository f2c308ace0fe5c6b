"""The command line of `python -m profiler.replay`: paths and options, how they are read, and the help text."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from profiler.allocator.alloc_conf import parse_alloc_conf
from profiler.config.options.command_words import as_pairs, read_given, word_fault
from profiler.config.options.option import Kind, OutputFormat, count, format_option, option, options_of, path
from profiler.config.options.reading import FieldReader, show
from profiler.config.options.run_options import option_lines
from profiler.config.options.value_grammar import read_path
from profiler.domain.cards.gpu import Gpu
from profiler.domain.cards.gpu_names import find_gpu, name_card
from profiler.domain.errors import Fault, UsageError

FIGURE_SUFFIXES = (".png", ".svg")
_LARGEST_DEVICE = 1023


def _card(reader: FieldReader, key: str) -> Gpu | None:
    card = name_card(show(reader.value(key)))
    found = find_gpu(card.name)
    if found is None:
        reader.fail(key, card.problem, card.hint)
    return found


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """The options, in the order of the help text."""

    alloc_conf: str | None = option(
        None,
        Kind(
            allowed="settings of PyTorch's allocator",
            shown="TEXT",
            read=lambda reader, key: str(reader.value(key)),
            read_text=read_path,
        ),
        "what if PYTORCH_ALLOC_CONF had been TEXT, such as expandable_segments:True,max_split_size_mb:128",
        null="without gpu: expandable_segments:True",
    )
    gpu: Gpu | None = option(
        None,
        Kind(allowed="the name of a card, or a size", shown="NAME", read=_card),
        "what if the card had been NAME, such as a100-40gb",
        null="the card of the snapshot",
    )
    device: int | None = option(
        None,
        count(minimum=0, maximum=_LARGEST_DEVICE),
        "which of the snapshot's devices",
        null="the one that ran out of memory first, else that with most entries",
    )
    figure: PurePath | None = option(
        None,
        path("a path that ends in .png or .svg, or a folder for several snapshots", "PATH"),
        "draw it, as .png or .svg; a folder for several snapshots",
        null="no figure",
    )
    output_format: OutputFormat = format_option()


OPTIONS = options_of(ReplayOptions)
"""By name."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A parsed command line; `faults` has what is wrong with it."""

    paths: tuple[Path, ...]
    """Snapshots, and folders of them."""
    options: ReplayOptions
    wants_help: bool
    faults: tuple[Fault, ...]


def read_command(words: Sequence[str]) -> Command:
    """Parse `words` (argv without the program)."""
    given = read_given(ReplayOptions, as_pairs(words))
    paths, faults = [], []
    for word in given.others:
        if not word:
            faults.append(Fault(key="snapshot", found="(nothing)", problem="must be a file or a folder"))
        elif _is_path(word):
            paths.append(Path(word))
        else:
            faults.append(word_fault(word, OPTIONS))
    faults += [*_alloc_conf_faults(given.options.alloc_conf), *given.reader.faults]
    if not paths and "" not in words:
        hint = "Write: python -m profiler.replay snapshot.pickle"
        faults.append(Fault(key="snapshot", found="none", problem="name a file or a folder", hint=hint))
    return Command(paths=tuple(paths), options=given.options, wants_help=given.wants_help, faults=tuple(faults))


def _is_path(word: str) -> bool:
    """Whether a word names a snapshot: a path may contain "="."""
    key, equals, _ = word.partition("=")
    return not word.startswith("-") and (not equals or not key.isidentifier() or Path(word).exists())


def _alloc_conf_faults(settings: str | None) -> Sequence[Fault]:
    try:
        parse_alloc_conf(settings or "")
    except UsageError as error:
        return error.faults
    return ()


def usage() -> str:
    """Return the help text."""
    return f"""\
python -m profiler.replay SNAPSHOT [key=value ...]

What a program did to a card's memory, out of a snapshot that it wrote with
torch.cuda.memory._dump_snapshot: peaks, fragmentation, what ran out of memory,
and what would have been with other settings or on another card.
SNAPSHOT is a .pickle, .pkl or .pickle.gz, or a folder of them; several may be
given. Nothing that the files contain is run.

{option_lines(OPTIONS.values(), indent=20)}
Without alloc_conf and gpu, expandable_segments:True is tried.

Examples:
  python -m profiler.replay snapshot.pickle
  python -m profiler.replay snapshot.pickle gpu=a100-40gb figure=replay.png
  python -m profiler.replay snapshots/ format=json
"""
