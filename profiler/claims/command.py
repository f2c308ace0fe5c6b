"""The command line of `python -m profiler.claims`: its options, how they are read, and the help text."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from profiler.config.options.command_words import as_pairs, read_given, word_fault
from profiler.config.options.option import FLAG, Kind, OutputFormat, format_option, option, options_of, path
from profiler.config.options.reading import FieldReader, show
from profiler.config.options.run_options import option_lines
from profiler.domain.claims import Claim
from profiler.domain.errors import Fault

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
