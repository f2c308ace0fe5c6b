"""`python -m profiler.claims`: what five public texts claim about the memory of GRPO, judged.

Exit codes: docs/exit_codes.md. That a claim does not hold is an answer, and ends with 0.
"""

import csv
import io
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from profiler.analysis.claim_trials import StoredTrials
from profiler.analysis.verdicts import Evidence, Judged, judge
from profiler.claims.figures import ClaimFigures, ScriptPeaks, ScriptRun
from profiler.command_line import as_command, print_error, print_line, print_text
from profiler.config.options.command_words import as_pairs, read_given, word_fault
from profiler.config.options.option import FLAG, Kind, OutputFormat, format_option, option, options_of, path
from profiler.config.options.reading import FieldReader, show
from profiler.config.options.run_options import option_lines
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
from profiler.storage.files.foreign_files import Kind as FileKind
from profiler.storage.files.foreign_files import kind_of, read_bytes, reason
from profiler.storage.foreign.published import read_counted, read_looked_up, read_published, read_published_claims
from profiler.storage.stores.record_store import writable_faults
from profiler.storage.sweep_tables.tables import read_tables

CLAIM, SOURCE = "claim", "source"


def _id(of: str) -> Kind[str]:
    """Return the kind of an id, which the command compares with those of the claims that it reads."""
    return Kind(allowed=f"the id of {of}", shown="ID", read=lambda reader, key: show(reader.value(key)))


@dataclass(frozen=True, kw_only=True)
class ClaimsOptions:
    """The options, in the order of the help text."""

    results_dir: PurePath = option(
        PurePath("results"), path("a folder", "FOLDER"), "results of sweeps, one folder per grid"
    )
    claim: str | None = option(None, _id("a claim"), "one claim, with every setting", null="all")
    source: str | None = option(None, _id("a text"), "only the claims of one text", null="all")
    output_format: OutputFormat = format_option()
    write: bool = option(
        True, FLAG, "write claims.md, claims.html and their figure to FOLDER/claims, next to the report of the sweep"
    )


OPTIONS = options_of(ClaimsOptions)
"""By name."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A parsed command line; `faults` has what is wrong with it."""

    options: ClaimsOptions
    wants_help: bool
    faults: tuple[Fault, ...]


def read_command(words: Sequence[str], claims: Sequence[Claim]) -> Command:
    """Parse `words` (argv without the program)."""
    given = read_given(ClaimsOptions, as_pairs(words))
    claim, source = given.options.claim, given.options.source
    _check_id(given.reader, CLAIM, claim, (each.id for each in claims))
    _check_id(given.reader, SOURCE, source, (each.source.id for each in claims))
    if claim is not None and source is not None and given.reader.sound(CLAIM, SOURCE):
        given.reader.fail(CLAIM, "names one claim, so that source has no meaning", "Leave source out.")
    faults = (*(word_fault(word, OPTIONS) for word in given.others), *given.reader.faults)
    return Command(options=given.options, wants_help=given.wants_help, faults=faults)


def _check_id(reader: FieldReader, key: str, value: str | None, ids: Iterable[str]) -> None:
    known = tuple(dict.fromkeys(ids))
    if value is not None and value not in known:
        reader.one_of(key, known)


def usage() -> str:
    """Return the help text."""
    return f"""\
python -m profiler.claims [results_dir=FOLDER] [key=value ...]

What five public texts claim about the memory of GRPO: claimed figure, ours with
its origin, and a verdict with its reason. Claims, configurations and tolerances
are in profiler/published/claims.yaml.

  holds              in every setting that was compared
  holds only when    in some settings, which are named
  does not hold      in no setting
  not decidable here for the reason that is given

A configuration has the result of its trial, measured, emulated or simulated, if
a sweep in FOLDER has stored it, and else its estimate in closed form. Run the
trials of all claims with: python -m profiler.sweep +grid=claims

{option_lines(OPTIONS.values(), indent=22)}
Examples:
  python -m profiler.claims results_dir=results/reference
  python -m profiler.claims results_dir=results/reference source=article-trl
  python -m profiler.claims claim=guide-batch format=json
"""


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
        if kind_of(results_dir) is not FileKind.FOLDER:
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
    for file in (results_dir / name for name in SCRIPTS):
        try:
            found |= _script_runs(read_bytes(file, most_bytes=_MOST_BYTES).decode())
        except FileNotFoundError:
            continue
        except OSError as error:
            print_error(f"{file} is left out: it cannot be read ({reason(error)}).")
        except (ValueError, csv.Error) as error:
            print_error(f"{file} is left out: it has no table of scripts ({printable(str(error))}).")
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
