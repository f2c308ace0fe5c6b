"""`python -m profiler.report results/<grid>`: draw table, pages and figures from the stored results."""

import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from rich.console import Console

from profiler.analysis.differences import compare_sweeps
from profiler.analysis.frames import comparison_frame
from profiler.analysis.sweep_report import SectionReport, only_trials, sweep_report
from profiler.command_line import as_command, print_text, readable
from profiler.domain.errors import EXIT_OK, Fault, ProfilerError, UsageError, nearest
from profiler.rendering.csv_table import as_csv
from profiler.rendering.differences import print_differences
from profiler.rendering.figures.catalogue import Drawing, chosen, too_much
from profiler.rendering.figures.files import as_png, as_svg
from profiler.rendering.html.page import html_page
from profiler.rendering.markdown import report_page
from profiler.rendering.pages import FIGURES, RenderedFigure, SectionFigures
from profiler.rendering.terminal import print_comparison
from profiler.rendering.terminal_console import TerminalConsole
from profiler.storage.atomic import remove_abandoned, write_atomically
from profiler.storage.foreign_files import Kind, kind_of, reason
from profiler.storage.published import read_published
from profiler.storage.tables import read_tables

PAGE = "report.html"
"""The page that opens from disk, with everything in one file."""
MARKDOWN = "report.md"
"""The page that GitHub shows, with links to the figures."""
TABLE = "comparison.csv"
_MOST_FOLDERS = 2
REFERENCE = "reference"
"""The folder in `results/` whose results are in git."""


def render_folder(folder: Path, *, console: Console | None, trial_ids: Collection[str] | None = None) -> None:
    """Draw the stored results of a grid: a table on `console`, pages, `comparison.csv` and `figures/` in `folder`.

    Args:
        folder: `<results_dir>/<grid>/`.
        console: Where to print the table and the path of the page; None prints nothing.
        trial_ids: The trials of the table on the console; None for all. Page and figures always have all.

    Raises:
        UsageError: A table is missing or damaged.
        StorageError: The page or a figure could not be written.
        ProfilerError: A figure could not be drawn; everything else was written.
    """
    remove_abandoned(folder)
    report = sweep_report(read_tables(folder), read_published(), grid=folder.resolve().name)
    figures = [
        _draw_section(folder, part, number, own)
        for number, (part, own) in enumerate(zip(report.sections, chosen(report.sections), strict=True), start=1)
    ]
    table = comparison_frame(part.section for part in report.sections)
    write_atomically(folder / MARKDOWN, report_page(report, figures).encode())
    write_atomically(folder / PAGE, html_page(report, figures).encode())
    write_atomically(folder / TABLE, as_csv(table).encode())
    # The terminal comes last: a reader such as `head` can close it, and the files have to be complete all the same.
    if console is not None:
        print_comparison(report if trial_ids is None else only_trials(report, trial_ids), console)
        console.print()
        console.print(f"Report: {folder / PAGE}", highlight=False, markup=False, soft_wrap=True)
    broken = [sentence for each in figures for sentence in each.broken]
    if broken:
        raise ProfilerError(
            " ".join(broken) + f" The records are unchanged; draw again with: python -m profiler.report {folder}"
        )


@as_command("report")
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if set(words) & {"-h", "--help"}:
        print_text(_HELP)
        return EXIT_OK
    folder, other = _folders(words)
    with readable():
        if other is None:
            render_folder(folder, console=TerminalConsole())
        else:
            compare_folders(folder, other, console=TerminalConsole())
    return EXIT_OK


def compare_folders(before: Path, after: Path, *, console: Console) -> None:
    """Print what changed between the results of two folders, trial by trial.

    Raises:
        UsageError: A table is missing or damaged.
    """
    found = compare_sweeps(read_tables(before).runs, read_tables(after).runs)
    print_differences(found, console, names=_names(before, after))


def _names(before: Path, after: Path) -> tuple[str, str]:
    """Return different names for two folders: their own, or the shortest ends of their paths that differ."""
    one, other = before.resolve().parts, after.resolve().parts
    for length in range(1, max(len(one), len(other)) + 1):
        if one[-length:] != other[-length:]:
            return "/".join(one[-length:]), "/".join(other[-length:])
    return "before", "after"


_HELP = """\
python -m profiler.report FOLDER [FOLDER]

Draw the stored results of a sweep: a table, report.html, report.md,
comparison.csv and figures. With a second folder, show what changed between two
sweeps instead. FOLDER is results/<grid>, as a sweep left it.

Examples:
  python -m profiler.report results/lora_vs_full
  python -m profiler.report results/reference/lora_vs_full results/lora_vs_full
"""

_USAGE = "Write: python -m profiler.report results/<grid>, or two folders to compare them"


def _folders(words: Sequence[str]) -> tuple[Path, Path | None]:
    """Return the folders that the command line names: one, or two to compare.

    Raises:
        UsageError: There are none or more than two, or one of them cannot be used.
    """
    faults = [
        Fault(key="argument", found=word or "(nothing)", problem="is not a folder of results", hint=f"{_USAGE}.")
        for word in words
        if not word or word.startswith("-")
    ]
    if not 1 <= len(words) <= _MOST_FOLDERS:
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


def _draw_section(folder: Path, part: SectionReport, number: int, own: Sequence[Drawing]) -> SectionFigures:
    results = [_draw(folder, drawing) for drawing in own]
    return SectionFigures(
        figures=tuple(figure for figure in results if isinstance(figure, RenderedFigure)),
        left_out=too_much(part, number=number, shown=len(own)),
        broken=tuple(sentence for sentence in results if isinstance(sentence, str)),
    )


def _draw(folder: Path, drawing: Drawing) -> RenderedFigure | str:
    """Draw and write one figure; return a sentence if it cannot be drawn."""
    try:
        figure = drawing.draw()
        png, svg = as_png(figure), as_svg(figure)
    except Exception as error:  # a figure that fails, for whatever reason, must not cost the others
        lines = str(error).splitlines() or [""]
        return f"The figure '{drawing.name}' could not be drawn ({type(error).__name__}: {lines[0]})."
    write_atomically(folder / FIGURES / f"{drawing.name}.png", png)
    write_atomically(folder / FIGURES / f"{drawing.name}.svg", svg)
    return RenderedFigure(name=drawing.name, title=drawing.title, png=png, svg=svg)


if __name__ == "__main__":
    sys.exit(main())
