"""The parsed command line of `advise`: key=value, those of an estimate and a few of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from profiler.config.reading import FieldReader
from profiler.domain.errors import Fault, nearest
from profiler.estimate.command import FORMAT
from profiler.estimate.command import Command as EstimateCommand
from profiler.estimate.command import read_command as read_estimate
from profiler.solve.command import CONFIRM, MARGIN, MAX_MARGIN, margin_value, yaml_value

OOM = "oom"


class OutputFormat(StrEnum):
    """Values of `format`."""

    TEXT = "text"
    JSON = "json"


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
    keys = (OOM, MARGIN, CONFIRM, FORMAT)
    own = {key: text for key, equals, text in (word.partition("=") for word in words) if equals and key in keys}
    rest = read_estimate([word for word in words if "=" not in word or word.partition("=")[0] not in keys])
    reader = FieldReader({MARGIN: margin_value(own.get(MARGIN, "0")), CONFIRM: yaml_value(own.get(CONFIRM, "true"))})
    margin, confirm = reader.number(MARGIN, maximum=MAX_MARGIN), reader.flag(CONFIRM)
    faults = [*rest.faults, *reader.faults, *_format_faults(own), *_card_faults(rest)]
    return Command(
        log=own.get(OOM),
        margin=margin,
        confirm=confirm,
        output_format=OutputFormat.JSON if own.get(FORMAT) == OutputFormat.JSON else OutputFormat.TEXT,
        rest=rest,
        faults=tuple(faults),
    )


def _format_faults(own: dict[str, str]) -> list[Fault]:
    text, names = own.get(FORMAT), [str(member) for member in OutputFormat]
    if text is None or text in names:
        return []
    return [Fault(key=FORMAT, found=text, problem=f"must be one of {', '.join(names)}", hint=nearest(text, names))]


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
