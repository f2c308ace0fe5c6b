"""The command line of `python -m profiler.report`: folders and options, how they are read, and the help text."""

from collections.abc import Sequence
from dataclasses import dataclass

from profiler.config.options.command_words import as_pairs, read_given, word_fault
from profiler.config.options.option import INCREASE, Kind, name, option, options_of
from profiler.config.options.reading import FieldReader, show
from profiler.config.options.run_options import option_lines
from profiler.config.options.value_grammar import Value, read_values
from profiler.domain.errors import Fault, nearest
from profiler.rendering.document import STANDARD_KINDS, FigureKind

INTO = "into"


def _one_or_several(text: str) -> Value:
    values = read_values(text)
    return values[0] if len(values) == 1 else list(values)


def _kinds(reader: FieldReader, key: str) -> tuple[FigureKind, ...]:
    value, allowed = reader.value(key), list(map(str, FigureKind))
    names = value if isinstance(value, list) else [value]
    if wrong := [show(each) for each in names if each not in allowed]:
        problem = f"must be one or several of {', '.join(allowed)}, separated by commas"
        reader.fail(key, problem, nearest(wrong[0], allowed))
    return tuple(kind for kind in FigureKind if kind in names)


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """The options, in the order of the help text."""

    figures: tuple[FigureKind, ...] = option(
        tuple(STANDARD_KINDS),
        Kind(
            allowed=f"one or several of {', '.join(FigureKind)}",
            shown="KINDS",
            read=_kinds,
            read_text=_one_or_several,
            words=tuple(FigureKind),
        ),
        "formats of the figures' files, separated by commas",
    )
    max_increase: float | None = option(
        None,
        INCREASE,
        "with two folders: end with exit code 4 if the peak of a trial grew by more, if it fitted and no longer does, "
        "or if no trial is in both; print Markdown, and append it to the file that GITHUB_STEP_SUMMARY names",
        null="show what changed",
    )
    into: str | None = option(
        None,
        name("a folder", "FOLDER"),
        "where the results of several folders are written as one; the folders themselves stay as they are",
        null="combined/<grid> next to them",
    )


OPTIONS = options_of(ReportOptions)
"""By name."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A parsed command line; `faults` has what is wrong with its keys."""

    folders: tuple[str, ...]
    """The words that are no `key=value`."""
    options: ReportOptions
    wants_help: bool
    faults: tuple[Fault, ...]


def read_command(words: Sequence[str]) -> Command:
    """Parse `words` (argv without the program)."""
    given = read_given(ReportOptions, as_pairs(words))
    wrong = [word for word in given.others if _is_wrong(word)]
    return Command(
        folders=tuple(word for word in given.others if word not in wrong),
        options=given.options,
        wants_help=given.wants_help,
        faults=(*(word_fault(word, OPTIONS) for word in wrong), *given.reader.faults),
    )


def _is_wrong(word: str) -> bool:
    """Whether a word is an option; the name of a folder may contain "=" after a separator."""
    key, equals, _ = word.partition("=")
    return word.startswith("-") or (bool(equals) and key.isidentifier())


def usage() -> str:
    """Return the help text."""
    return f"""\
python -m profiler.report FOLDER [figures=png,svg,pdf]
python -m profiler.report FOLDER FOLDER [max_increase=2%]
python -m profiler.report 'PATTERN' [into=FOLDER]
python -m profiler.report s3://BUCKET/PATH/GRID [into=FOLDER]

Draw the stored results of a sweep: a table, report.html, report.md,
comparison.csv, table.tex and figures. With a second folder, show what changed
between two sweeps instead. FOLDER is results/<grid>, as a sweep left it.

A quoted pattern, three or more folders, or into=FOLDER reads the folders as one:
shards of a sweep (shard=2/8), or the results of several machines. A trial that
is in several folders counts once; trials of different versions are kept apart.
A FOLDER may be the address of a store that several machines share (gs://BUCKET,
file:///FOLDER): its records are read as they are now.

{option_lines(OPTIONS.values(), indent=20)}
Examples:
  python -m profiler.report results/lora_vs_full
  python -m profiler.report results/lora_vs_full figures=png,svg,pdf
  python -m profiler.report results/reference/lora_vs_full results/lora_vs_full
  python -m profiler.report results/before results/after max_increase=2%
  python -m profiler.report 'results/*/lora_vs_full'
"""
