"""`python -m profiler.report results/<grid>`: the table, the pages and the figures again, from what is stored."""

import argparse
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from profiler.analysis.acceptance import Threshold, pairs, thresholds
from profiler.analysis.accuracy import accuracies
from profiler.analysis.comparison import Section, compare
from profiler.analysis.differences import compare_sweeps
from profiler.analysis.frames import comparison_frame
from profiler.analysis.gpu_time import gpu_time_of
from profiler.analysis.peaks import largest_rows, phase_rows, stacks
from profiler.analysis.repeat import repeat_commands
from profiler.analysis.shapes import shapes
from profiler.command_line import as_command, readable
from profiler.domain.errors import EXIT_OK, Fault, ProfilerError, UsageError, nearest
from profiler.domain.memory import Origin
from profiler.rendering.differences import print_differences
from profiler.rendering.figures.catalogue import Drawing, drawings, too_much
from profiler.rendering.figures.files import as_png, as_svg
from profiler.rendering.html.page import html_page
from profiler.rendering.markdown import report_page
from profiler.rendering.pages import FIGURES, RenderedFigure, SectionPage
from profiler.rendering.terminal import print_comparison
from profiler.storage.atomic import write_atomically
from profiler.storage.published import read_published
from profiler.storage.tables import Tables, read_tables

PAGE = "report.html"
"""The page that opens from disk, with everything inside."""
MARKDOWN = "report.md"
"""The page that GitHub shows, with the figures beside it."""
TABLE = "comparison.csv"
REFERENCE = "reference"
"""The folder in `results/` whose results are in git."""


def render_folder(folder: Path, *, console: Console | None, trial_ids: Collection[str] | None = None) -> None:
    """Draw the stored results of a grid: the table on `console`, pages, `comparison.csv` and `figures/` in `folder`.

    Args:
        folder: `<results_dir>/<grid>/`.
        console: Where the table goes; None for nowhere. Its last line says where the page is.
        trial_ids: The trials of the table on the console; None for all. Page and figures always show all.

    Raises:
        UsageError: There is nothing to read, or it is damaged.
        StorageError: The page or a figure could not be written.
        ProfilerError: A figure could not be drawn; everything else was.
    """
    tables, published = read_tables(folder), read_published()
    sections = compare(tables.runs, published)
    sampled = [_drawn(folder, tables, section, number) for number, section in enumerate(sections, start=1)]
    judged = _thresholds(tables, sections)
    spent = gpu_time_of(tables.runs)
    about = {"grid": folder.resolve().name, "question": tables.question, "command": _command(folder, tables)}
    about["spent"] = spent.sentence(price_per_hour=None) if spent else ""
    commands = repeat_commands(tables.runs)
    write_atomically(folder / MARKDOWN, report_page(**about, pages=sampled, thresholds=judged).encode())
    write_atomically(folder / PAGE, html_page(**about, sections=sampled, thresholds=judged, commands=commands).encode())
    write_atomically(folder / TABLE, comparison_frame(sections).to_csv(index=False, lineterminator="\n").encode())
    # The terminal comes last: a reader such as `head` may close it, and the files are to be there all the same.
    if console is not None:
        shown = tables.runs if trial_ids is None else tables.runs[tables.runs["trial_id"].isin(list(trial_ids))]
        print_comparison(compare(shown, published), console, thresholds=judged)
        console.print()
        console.print(f"Report: {folder / PAGE}", highlight=False, markup=False, soft_wrap=True)
    broken = [sentence for each in sampled for sentence in each.broken]
    if broken:
        raise ProfilerError(
            " ".join(broken) + f" The records are untouched; draw again with: python -m profiler.report {folder}"
        )


@as_command("report")
def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = _Parser(
        prog="python -m profiler.report",
        description="Draw stored results again, or compare two sweeps.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="results/<grid>, as a sweep left it")
    parser.add_argument("other", type=Path, nargs="?", help="a second folder: show what changed from the first to it")
    asked = parser.parse_args(argv)
    folder: Path = asked.folder
    other: Path | None = asked.other
    for each in (folder, other) if other else (folder,):
        _check_folder(each)
    with readable():
        if other is None:
            render_folder(folder, console=Console())
        else:
            compare_folders(folder, other, console=Console())
    return EXIT_OK


def compare_folders(before: Path, after: Path, *, console: Console) -> None:
    """Print what changed from the results in one folder to those in the other, trial by trial.

    Raises:
        UsageError: There is nothing to read in one of them, or it is damaged.
    """
    found = compare_sweeps(read_tables(before).runs, read_tables(after).runs)
    print_differences(found, console, names=_names(before, after))


def _names(before: Path, after: Path) -> tuple[str, str]:
    """What tells two folders apart: their own names, or the shortest paths that differ."""
    one, other = before.resolve().parts, after.resolve().parts
    for length in range(1, max(len(one), len(other)) + 1):
        if one[-length:] != other[-length:]:
            return "/".join(one[-length:]), "/".join(other[-length:])
    return "before", "after"


class _Parser(argparse.ArgumentParser):
    """Complains in one sentence, as every command here does."""

    def error(self, message: str) -> NoReturn:
        fault = Fault(key="arguments", found=" ".join(sys.argv[1:]) or "none", problem=message, hint=_USAGE)
        raise UsageError([fault])


_EXAMPLES = """\
Examples:
  python -m profiler.report results/lora_vs_full
  python -m profiler.report results/reference/lora_vs_full results/lora_vs_full
"""

_USAGE = "Write: python -m profiler.report results/<grid>, or two folders to compare them"


def _check_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    kept = folder.parent / REFERENCE / folder.name
    if (kept / "runs.parquet").is_file():
        hint = f"Run the sweep first (python -m profiler.sweep +grid={folder.name}), or draw the kept one: {kept}."
    else:
        grids = sorted(path.parent.name for path in folder.parent.glob("*/runs.parquet"))
        hint = nearest(folder.name, grids) or _USAGE
    raise UsageError([Fault(key="folder", found=str(folder), problem="no such folder", hint=hint)])


def _thresholds(tables: Tables, sections: Sequence[Section]) -> tuple[Threshold, ...]:
    """How far the simulation is from a real card; nothing where nothing is simulated."""
    simulated = any(section.setting.origin is Origin.SIMULATED for section in sections)
    return thresholds(pairs([tables.runs])) if simulated else ()


def _command(folder: Path, tables: Tables) -> str:
    if tables.command:
        return tables.command
    grids = sorted({str(grid) for grid in tables.runs["grid"]})
    return f"python -m profiler.sweep +grid={grids[0] if len(grids) == 1 else folder.name}"


def _drawn(folder: Path, tables: Tables, section: Section, number: int) -> SectionPage:
    stacked = stacks(section, tables.breakdown)
    found = accuracies(section.in_order())
    figures, broken = [], []
    for drawing in drawings(section, stacks=stacked, found=found, number=number, shapes=shapes(section, tables.shape)):
        figure = _draw(folder, drawing)
        if isinstance(figure, RenderedFigure):
            figures.append(figure)
        else:
            broken.append(figure)
    return SectionPage(
        section=section,
        phases=phase_rows(section, tables.phases),
        stacks=stacked,
        largest=largest_rows(section, tables.largest),
        figures=tuple(figures),
        left_out=too_much(section, stacks=stacked),
        broken=tuple(broken),
    )


def _draw(folder: Path, drawing: Drawing) -> RenderedFigure | str:
    """Draws and writes one figure; a sentence when it cannot be drawn."""
    try:
        figure = drawing.draw()
        png, svg = as_png(figure), as_svg(figure)
    except Exception as error:  # whatever matplotlib raises: a picture must not cost the results
        lines = str(error).splitlines() or [""]
        return f"The figure '{drawing.name}' could not be drawn ({type(error).__name__}: {lines[0]})."
    write_atomically(folder / FIGURES / f"{drawing.name}.png", png)
    write_atomically(folder / FIGURES / f"{drawing.name}.svg", svg)
    return RenderedFigure(name=drawing.name, title=drawing.title, png=png, svg=svg)


if __name__ == "__main__":
    sys.exit(main())
