"""`python -m profiler.claims`: what five public texts claim about the memory of GRPO, judged.

Exit codes: docs/exit_codes.md. That a claim does not hold is an answer, and ends with 0.
"""

import csv
import io
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from profiler.analysis.claim_trials import StoredTrials
from profiler.analysis.verdicts import Evidence, Judged, judge
from profiler.claims.command import ClaimsOptions, read_command, usage
from profiler.claims.figures import ClaimFigures, ScriptPeaks, ScriptRun
from profiler.command_line import as_command, print_error, print_line, print_text
from profiler.config.options.option import OutputFormat
from profiler.domain.claims import Claim, End, Quantity
from profiler.domain.errors import EXIT_OK, Fault, UsageError, printable
from profiler.domain.memory import MIB
from profiler.domain.runs.outcome import Status
from profiler.rendering.claims import claims_json, claims_page, claims_table
from profiler.rendering.document import FIGURES, RenderedFigure
from profiler.rendering.figures.claims import claims_figure
from profiler.rendering.figures.theme import as_png, as_svg
from profiler.rendering.layouts.html import html
from profiler.rendering.layouts.markdown import markdown
from profiler.storage.files.atomic import write_atomically, write_parts_atomically
from profiler.storage.files.foreign_files import Kind, kind_of, read_bytes, reason
from profiler.storage.foreign.published import read_counted, read_looked_up, read_published, read_published_claims
from profiler.storage.stores.record_store import writable_faults
from profiler.storage.sweep_tables.tables import read_tables

GRID = "claims"
SCRIPTS = (Path("scripts") / "tried.csv", Path("scripts") / "blog_2025.csv")
"""The runs of scripts that are kept, in a folder of results."""

_MOST_BYTES = 16 * MIB
"""Largest table of scripts."""

SCRIPT_ENDS = {Status.OK.value: End.FITS, Status.OOM.value: End.OOM}
_PEAKS = {
    Quantity.PEAK_ALLOCATED: "allocated_bytes",
    Quantity.PEAK_RESERVED: "reserved_bytes",
    Quantity.PEAK_DEVICE: "device_bytes",
}
PAGE, MARKDOWN = "claims.html", "claims.md"
"""Next to the report of the sweep, which has names of its own."""


@as_command("claims")
def main(argv: Sequence[str] | None = None) -> int:
    """Print the verdicts that `argv` (without the program) asks for, and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    claims = read_published_claims()
    command = read_command(words, claims)
    if command.wants_help:
        print_text(usage())
        return EXIT_OK
    if command.faults:
        raise UsageError(command.faults)
    options = command.options
    results_dir = Path(options.results_dir)
    stored = stored_trials(results_dir)
    writes = options.write and bool(stored)
    if writes:
        _check_writable(results_dir / GRID)
    judged = judge_all(claims, stored, kept_scripts(results_dir))
    shown = [each for each in judged if _is_asked(each.claim, options)]
    if options.output_format is OutputFormat.JSON:
        print_text(claims_json(shown))
    else:
        print_text(claims_table(shown, every_setting=options.claim is not None))
    if writes:
        path = write_pages(results_dir / GRID, judged)
        if options.output_format is OutputFormat.TABLE:
            print_line(f"Page: {path}")
    return EXIT_OK


def _check_writable(folder: Path) -> None:
    if faults := writable_faults(folder):
        raise UsageError([replace(fault, hint="Give write=false to print only.") for fault in faults])


def judge_all(claims: Sequence[Claim], stored: Sequence[StoredTrials], scripts: ScriptPeaks) -> tuple[Judged, ...]:
    """Return the verdict on each claim."""
    evidence = Evidence(
        figures_of=ClaimFigures(stored, scripts, read_counted()),
        published={figure.id: figure for figure in read_published()},
        looked_up=read_looked_up(),
    )
    return tuple(judge(claim, evidence) for claim in claims)


def stored_trials(results_dir: Path) -> list[StoredTrials]:
    """Return the trials of each grid in a folder of results, those of the claims first.

    A folder whose tables cannot be read is left out, and a line says so.

    Raises:
        UsageError: There is no such folder.
    """
    try:
        if kind_of(results_dir) is not Kind.FOLDER:
            problem = "is no folder of results"
            hint = "Run python -m profiler.sweep +grid=claims first, or name results/reference."
            raise UsageError([Fault(key="results_dir", found=str(results_dir), problem=problem, hint=hint)])
        folders = [path.parent for path in sorted(results_dir.glob("*/runs.parquet"))]
    except OSError as error:
        fault = Fault(key="results_dir", found=str(results_dir), problem=f"cannot be read ({reason(error)})")
        raise UsageError([fault]) from error
    found = []
    for folder in sorted(folders, key=lambda each: each.name != GRID):
        try:
            tables = read_tables(folder)
            found.append(StoredTrials(tables.runs, tables.shape))
        except UsageError as error:
            print_error(f"{folder} is left out: {error}")
    return found


def kept_scripts(results_dir: Path) -> ScriptPeaks:
    """Return the runs of scripts that are kept in a folder of results and fitted or ran out of memory.

    A file that cannot be read is left out, and a line says so.
    """
    found: dict[tuple[str, str], ScriptRun] = {}
    for path in (results_dir / name for name in SCRIPTS):
        try:
            found |= _script_runs(read_bytes(path, most_bytes=_MOST_BYTES).decode())
        except FileNotFoundError:
            continue
        except OSError as error:
            print_error(f"{path} is left out: it cannot be read ({reason(error)}).")
        except (ValueError, csv.Error) as error:
            print_error(f"{path} is left out: it has no table of scripts ({printable(str(error))}).")
    return found


def _script_runs(text: str) -> ScriptPeaks:
    """Return the runs in a table.

    Raises:
        ValueError: It has not the columns of one, or a size is not a number.
        csv.Error: It is no CSV.
    """
    rows = csv.DictReader(io.StringIO(text, newline=""))
    if missing := {"script", "backend", "status"} - set(rows.fieldnames or ()):
        raise ValueError(f"it has no column {', '.join(sorted(missing))}")
    return {
        (row["script"], row["backend"]): ScriptRun(
            end=SCRIPT_ENDS[row["status"]],
            peaks={quantity: int(row[column]) for quantity, column in _PEAKS.items() if row.get(column)},
        )
        for row in rows
        if row["status"] in SCRIPT_ENDS
    }


def write_pages(folder: Path, judged: Sequence[Judged]) -> Path:
    """Write both pages and the figure, and return the path of the page for GitHub."""
    picture = claims_figure(judged)
    figure = RenderedFigure(
        name=GRID, title="Claimed and found changes of memory", png=as_png(picture), svg=as_svg(picture)
    )
    folder.joinpath(FIGURES).mkdir(parents=True, exist_ok=True)
    write_atomically(folder / FIGURES / f"{GRID}.png", figure.png)
    write_atomically(folder / FIGURES / f"{GRID}.svg", figure.svg)
    page = claims_page(judged, figure)
    write_parts_atomically(folder / PAGE, html(page))
    write_atomically(folder / MARKDOWN, markdown(page).encode())
    return folder / MARKDOWN


def _is_asked(claim: Claim, options: ClaimsOptions) -> bool:
    if options.claim is not None:
        return claim.id == options.claim
    return options.source is None or claim.source.id == options.source
