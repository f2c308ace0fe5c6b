"""The command: arguments, and which folders they name."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from profiler.analysis.differences import compare_sweeps
from profiler.command_line import as_command, print_line, print_text, readable
from profiler.config.command_words import HELP_FLAGS
from profiler.config.reading import MAX_INCREASE
from profiler.domain.errors import EXIT_ANSWER_IS_NO, EXIT_OK, Fault, UsageError
from profiler.domain.labels import names_of
from profiler.rendering.layouts.terminal import TerminalConsole, print_document
from profiler.rendering.sweep.differences import differences_summary, growth_summary
from profiler.rendering.sweep.ranks import rank_lines
from profiler.report.command import read_command
from profiler.report.drawing import render_folder
from profiler.report.folders import USAGE, named_folders
from profiler.storage.combined import combine_tables
from profiler.storage.job_page import append_to_job_page
from profiler.storage.ranks import copy_ranks, rank_peaks
from profiler.storage.tables import read_tables


@as_command("report")
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if set(words) & set(HELP_FLAGS):
        print_text(_HELP)
        return EXIT_OK
    command = read_command(words)
    folders = named_folders(command)
    folder, other = folders.named[0], folders.named[1] if len(folders.named) > 1 else None
    if command.max_increase is not None:
        return _guard(folder, other if folders.into is None else None, command.max_increase)
    if folders.into is not None:
        for line in combine_tables(folders.named, folders.into).lines():
            print_line(line)
        copy_ranks(folders.named, folders.into)
        folder, other = folders.into, None
    with readable():
        if other is None:
            render_folder(folder, console=TerminalConsole(), kinds=command.kinds)
            for line in rank_lines([(each.record, each.allocated_bytes) for each in rank_peaks(folder)]):
                print_line(line)
        else:
            compare_folders(folder, other, console=TerminalConsole())
    return EXIT_OK


def _guard(before: Path, after: Path | None, limit: float) -> int:
    """Print whether a peak grew by more than `limit`, also to the page of a job; return the exit code.

    Raises:
        UsageError: There is no second folder, or a table is missing or damaged.
        StorageError: The page cannot be written.
    """
    if after is None:
        problem = "compares two folders, and one is named"
        raise UsageError([Fault(key=MAX_INCREASE, found=f"{limit:g}", problem=problem, hint=f"{USAGE}.")])
    found = compare_sweeps(read_tables(before).runs, read_tables(after).runs)
    grown = [each for each in found.both if each.grew(limit)]
    text = growth_summary(found, grown, most_ratio=limit, names=names_of((before.resolve(), after.resolve())))
    print_text(text)
    append_to_job_page(text)
    return EXIT_ANSWER_IS_NO if grown or not found.both else EXIT_OK


def compare_folders(before: Path, after: Path, *, console: Console) -> None:
    """Print what changed between the results of two folders, trial by trial.

    Raises:
        UsageError: A table is missing or damaged.
    """
    found = compare_sweeps(read_tables(before).runs, read_tables(after).runs)
    print_document(differences_summary(found, names=names_of((before.resolve(), after.resolve()))), console)


_HELP = """\
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

  into=FOLDER    where they are written as one (default: combined/<grid> next to
                 them); the folders themselves stay as they are
  figures=KINDS  formats of the figures' files: png, svg, pdf (default: png,svg)

max_increase=2% ends with exit code 4 if the peak of a trial grew by more, if it
fitted and no longer does, or if no trial is in both; it prints Markdown, and
appends it to the file that GITHUB_STEP_SUMMARY names.

Examples:
  python -m profiler.report results/lora_vs_full
  python -m profiler.report results/lora_vs_full figures=png,svg,pdf
  python -m profiler.report results/reference/lora_vs_full results/lora_vs_full
  python -m profiler.report results/before results/after max_increase=2%
  python -m profiler.report 'results/*/lora_vs_full'
"""
