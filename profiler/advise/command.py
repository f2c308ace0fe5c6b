"""The parsed command line of `advise`: key=value, those of an estimate and a few of its own."""

from collections.abc import Sequence
from dataclasses import dataclass

from profiler.config.command_words import as_pairs
from profiler.config.option import FORMAT, OutputFormat, read_format
from profiler.domain.errors import Fault
from profiler.estimate.command import Command as EstimateCommand
from profiler.estimate.command import read_pairs as read_estimate
from profiler.solve.command import CONFIRM, MARGIN, MAX_MARGIN, margin_and_confirm

OOM = "oom"


@dataclass(frozen=True, kw_only=True)
class Command:
    """A parsed command line; `faults` has what is wrong with it."""

    log: str | None
    """Path of a log with an out-of-memory error."""
    margin: float
    """Part of the card that has to stay free."""
    confirm: bool
    """Whether the trial of a log is simulated."""
    output_format: OutputFormat
    rest: EstimateCommand
    """Everything else, read as for an estimate."""
    faults: tuple[Fault, ...]


def read_command(words: Sequence[str]) -> Command:
    """Parse `words` (argv without the program)."""
    pairs = as_pairs(words)
    keys = (OOM, MARGIN, CONFIRM, FORMAT)
    own = {key: text for key, equals, text in (word.partition("=") for word in pairs) if equals and key in keys}
    rest = read_estimate([word for word in pairs if "=" not in word or word.partition("=")[0] not in keys])
    reader = margin_and_confirm({FORMAT: OutputFormat.TEXT, **own}, paths=(OOM,))
    margin, confirm = reader.number(MARGIN, maximum=MAX_MARGIN), reader.flag(CONFIRM)
    output_format = read_format(reader, for_people=OutputFormat.TEXT)
    log = reader.value(OOM)
    faults = [*rest.faults, *reader.faults, *_card_faults(rest)]
    return Command(
        log=None if log is None else str(log),
        margin=margin,
        confirm=confirm,
        output_format=output_format,
        rest=rest,
        faults=tuple(faults),
    )


def _card_faults(rest: EstimateCommand) -> list[Fault]:
    faults = []
    if rest.any_card:
        problem = "asks for every card, and advice is for one; `python -m profiler.solve gpu` finds the smallest"
        faults.append(Fault(key="gpu", found="any", problem=problem))
    if rest.axes:
        problem = "has several values, and advice is for one trial at a time"
        faults += [
            Fault(key=key, found=",".join(map(str, values)), problem=problem) for key, values in rest.axes.items()
        ]
    return faults
