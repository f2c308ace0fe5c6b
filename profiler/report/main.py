"""The command: arguments, and which folders they name."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from profiler.analysis.compared.comparison import compare_sweeps
from profiler.command_line import as_command, print_line, print_text, readable
from profiler.config.options.option import MAX_INCREASE
from profiler.domain.errors import EXIT_ANSWER_IS_NO, EXIT_OK, Fault, UsageError
from profiler.domain.trials.labels import names_of
from profiler.rendering.layouts.terminal import TerminalConsole, print_document
from profiler.rendering.sweep.differences import differences_summary, growth_summary
from profiler.rendering.sweep.words import rank_lines
from profiler.report.command import read_command, usage
from profiler.report.drawing import render_folder
from profiler.report.folders import USAGE, named_folders
from profiler.storage.files.atomic import append_to_job_page
from profiler.storage.records.record_folder import copy_ranks, rank_peaks
from profiler.storage.sweep_tables.combined import combine_tables
from profiler.storage.sweep_tables.tables import read_tables


@as_command("report")
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    command = read_command(words)
    if command.wants_help:
        print_text(usage())
        return EXIT_OK
    folders = named_folders(command)
    folder, other = folders.named[0], folders.named[1] if len(folders.named) > 1 else None
    if command.options.max_increase is not None:
        return _guard(folder, other if folders.into is None else None, command.options.max_increase)
    if folders.into is not None:
        for line in combine_tables(folders.named, folders.into).lines():
            print_line(line)
        copy_ranks(folders.named, folders.into)
        folder, other = folders.into, None
    with readable():
        if other is None:
            render_folder(folder, console=TerminalConsole(), kinds=command.options.figures)
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
