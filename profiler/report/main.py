"""The command: arguments, the folders that they name, and the page of a folder with its tables and figures."""

import sys
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from profiler import __version__
from profiler.analysis.compared.comparison import compare_sweeps, comparison_frame
from profiler.analysis.sweep_report import SectionReport, only_trials, sweep_report
from profiler.command_line import as_command, print_line, print_text, readable
from profiler.config.options.option import MAX_INCREASE
from profiler.domain.errors import EXIT_ANSWER_IS_NO, EXIT_OK, Fault, ProfilerError, UsageError
from profiler.domain.trials.labels import names_of
from profiler.rendering.document import FIGURES, STANDARD_KINDS, FigureKind, PageOrigin, RenderedFigure
from profiler.rendering.figures.catalogue import Drawing, chosen, too_much
from profiler.rendering.figures.theme import rendered
from profiler.rendering.layouts.html import html
from profiler.rendering.layouts.markdown import markdown
from profiler.rendering.layouts.script_data import as_csv
from profiler.rendering.layouts.terminal import TerminalConsole, print_document
from profiler.rendering.sweep.comparison import latex_tables
from profiler.rendering.sweep.differences import differences_summary, growth_summary
from profiler.rendering.sweep.page import SectionFigures, sweep_page
from profiler.rendering.sweep.summary import sweep_summary
from profiler.rendering.sweep.words import rank_lines, rank_table
from profiler.report.command import read_command, usage
from profiler.report.estimated_limits import estimated_limits
from profiler.report.folders import USAGE, named_folders
from profiler.storage.files.atomic import append_to_job_page, remove_abandoned, write_atomically, write_parts_atomically
from profiler.storage.foreign.published import read_published
from profiler.storage.records.record_folder import copy_ranks, rank_peaks
from profiler.storage.records.versioned import project_page
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


PAGE = "report.html"
"""The page that opens from disk, with everything in one file."""
MARKDOWN = "report.md"
"""The page that GitHub shows, with links to the figures."""
TABLE = "comparison.csv"
LATEX = "table.tex"
"""The comparison of each section for a paper."""


def render_folder(
    folder: Path,
    *,
    console: Console | None,
    trial_ids: Collection[str] | None = None,
    kinds: Sequence[FigureKind] = STANDARD_KINDS,
) -> None:
    """Draw the stored results of a grid: a table on `console`, pages, tables and `figures/` in `folder`.

    Args:
        folder: `<results_dir>/<grid>/`.
        console: Where to print the table and the path of the page; None prints nothing.
        trial_ids: The trials of the table on the console; None for all. Page and figures always have all.
        kinds: The formats of the figures' files. The page has its figures in itself.

    Raises:
        UsageError: A table is missing or damaged.
        StorageError: The page or a figure could not be written.
        ProfilerError: A figure could not be drawn; everything else was written.
    """
    remove_abandoned(folder)
    report = sweep_report(read_tables(folder), read_published(), grid=folder.resolve().name)
    figures = [
        _draw_section(folder, part, number, own, kinds)
        for number, (part, own) in enumerate(
            zip(report.sections, chosen(report.sections, estimated_limits), strict=True), start=1
        )
    ]
    ranks = rank_table([(each.record, each.allocated_bytes) for each in rank_peaks(folder)])
    table = comparison_frame(part.section for part in report.sections)
    page = sweep_page(report, figures, origin=_origin(), ranks=ranks)
    write_atomically(folder / MARKDOWN, markdown(page).encode())
    write_parts_atomically(folder / PAGE, html(page))
    write_atomically(folder / TABLE, as_csv(table).encode())
    write_atomically(folder / LATEX, latex_tables(report).encode())
    # The terminal comes last: a reader such as `head` can close it, and the files have to be complete all the same.
    if console is not None:
        print_document(sweep_summary(report if trial_ids is None else only_trials(report, trial_ids)), console)
        console.print()
        console.print(f"Report: {folder / PAGE}", highlight=False, markup=False, soft_wrap=True)
    broken = [sentence for each in figures for sentence in each.broken]
    if broken:
        raise ProfilerError(
            " ".join(broken) + f" The records are unchanged; draw again with: python -m profiler.report {folder}"
        )


def _origin() -> PageOrigin:
    today = datetime.now(UTC).date()
    return PageOrigin(made_on=today, version=__version__, home=project_page(), files=(MARKDOWN, TABLE, LATEX))


def _draw_section(
    folder: Path, part: SectionReport, number: int, own: Sequence[Drawing], kinds: Sequence[FigureKind]
) -> SectionFigures:
    results = [_draw(folder, drawing, kinds) for drawing in own]
    return SectionFigures(
        figures=tuple(figure for figure in results if isinstance(figure, RenderedFigure)),
        left_out=too_much(part, number=number, shown=len(own)),
        broken=tuple(sentence for sentence in results if isinstance(sentence, str)),
    )


def _draw(folder: Path, drawing: Drawing, kinds: Sequence[FigureKind]) -> RenderedFigure | str:
    """Draw and write one figure; return a sentence if it cannot be drawn."""
    found = rendered(drawing.name, drawing.title, drawing.figure, note=drawing.note, kinds=kinds)
    if isinstance(found, str):
        return found
    figure, files = found
    for kind, content in files.items():
        write_atomically(folder / FIGURES / f"{drawing.name}.{kind}", content)
    return figure
