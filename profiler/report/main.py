"""The command: arguments, and which folders they name."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from profiler.analysis.differences import compare_sweeps
from profiler.command_line import as_command, print_text, readable
from profiler.config.reading import MAX_INCREASE
from profiler.domain.errors import EXIT_ANSWER_IS_NO, EXIT_OK, Fault, UsageError, nearest
from profiler.domain.labels import names_of
from profiler.rendering.differences import print_differences
from profiler.rendering.growth_summary import growth_summary
from profiler.rendering.terminal_console import TerminalConsole
from profiler.report.command import Command, read_command
from profiler.report.drawing import render_folder
from profiler.storage.foreign_files import Kind, kind_of, reason
from profiler.storage.job_page import append_to_job_page
from profiler.storage.tables import read_tables

_MOST_FOLDERS = 2
REFERENCE = "reference"
"""The folder in `results/` whose results are in git."""


@as_command("report")
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if set(words) & {"-h", "--help"}:
        print_text(_HELP)
        return EXIT_OK
    command = read_command(words)
    folder, other = _folders(command)
    if command.max_increase is not None:
        return _guard(folder, other, command.max_increase)
    with readable():
        if other is None:
            render_folder(folder, console=TerminalConsole(), kinds=command.kinds)
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
        raise UsageError([Fault(key=MAX_INCREASE, found=f"{limit:g}", problem=problem, hint=f"{_USAGE}.")])
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
    print_differences(found, console, names=names_of((before.resolve(), after.resolve())))


_HELP = """\
python -m profiler.report FOLDER [figures=png,svg,pdf]
python -m profiler.report FOLDER FOLDER [max_increase=2%]

Draw the stored results of a sweep: a table, report.html, report.md,
comparison.csv, table.tex and figures. With a second folder, show what changed
between two sweeps instead. FOLDER is results/<grid>, as a sweep left it.

  figures=KINDS  formats of the figures' files: png, svg, pdf (default: png,svg)

max_increase=2% ends with exit code 4 if the peak of a trial grew by more, if it
fitted and no longer does, or if no trial is in both; it prints Markdown, and
appends it to the file that GITHUB_STEP_SUMMARY names.

Examples:
  python -m profiler.report results/lora_vs_full
  python -m profiler.report results/lora_vs_full figures=png,svg,pdf
  python -m profiler.report results/reference/lora_vs_full results/lora_vs_full
  python -m profiler.report results/before results/after max_increase=2%
"""

_USAGE = "Write: python -m profiler.report results/<grid>, or two folders to compare them"


def _folders(command: Command) -> tuple[Path, Path | None]:
    """Return the folders that the command line names: one, or two to compare.

    Raises:
        UsageError: There are none or more than two, or one of them cannot be used.
    """
    words = command.folders
    faults = [*command.faults] + [
        Fault(key="argument", found=word or "(nothing)", problem="is not a folder of results", hint=f"{_USAGE}.")
        for word in words
        if not word or word.startswith("-")
    ]
    if not 1 <= len(words) <= _MOST_FOLDERS and not command.faults:
        found = " ".join(words) or "(none)"
        faults.append(Fault(key="folder", found=found, problem="name one folder or two", hint=f"{_USAGE}."))
    faults = faults or [fault for word in words if (fault := _folder_fault(Path(word))) is not None]
    if faults:
        raise UsageError(faults)
    return Path(words[0]), Path(words[1]) if len(words) > 1 else None


def _folder_fault(folder: Path) -> Fault | None:
    try:
        kind = kind_of(folder)
        return None if kind is Kind.FOLDER else _no_folder(folder, kind)
    except OSError as error:
        return Fault(key="folder", found=str(folder), problem=f"cannot be read ({reason(error)})")


def _no_folder(folder: Path, kind: Kind) -> Fault:
    """Return the fault of a path that is no folder, with what the user may have meant."""
    if kind is not Kind.MISSING:
        return Fault(key="folder", found=str(folder), problem="is not a folder", hint=f"{_USAGE}.")
    kept = folder.parent / REFERENCE / folder.name
    if (kept / "runs.parquet").is_file():
        hint = f"Run the sweep first (python -m profiler.sweep +grid={folder.name}), or draw the kept results: {kept}."
    else:
        grids = sorted(path.parent.name for path in folder.parent.glob("*/runs.parquet"))
        hint = nearest(folder.name, grids) or f"{_USAGE}."
    return Fault(key="folder", found=str(folder), problem="no such folder", hint=hint)
