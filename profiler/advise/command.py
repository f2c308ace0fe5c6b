"""The command line of `python -m profiler.advise`: its options beyond those of an estimate, and the help text."""

from collections.abc import Sequence
from dataclasses import dataclass

from profiler.config.options.command_words import as_pairs, read_given
from profiler.config.options.option import OutputFormat, format_option, name, option, options_of
from profiler.config.options.run_options import option_lines
from profiler.domain.errors import Fault
from profiler.estimate.command import COMMON_OPTIONS, LAUNCH
from profiler.estimate.command import Command as EstimateCommand
from profiler.estimate.command import read_pairs as read_estimate
from profiler.solve.command import WithMargin

OOM = "oom"


@dataclass(frozen=True, kw_only=True)
class AdviseOptions(WithMargin):
    """The options, in the order of the help text."""

    log: str | None = option(
        None,
        name("a file", "LOG"),
        "a file with an out-of-memory error of PyTorch",
        name=OOM,
        null="advice without one",
    )
    output_format: OutputFormat = format_option(OutputFormat.TEXT)


_OWN = options_of(AdviseOptions)

OPTIONS = {**COMMON_OPTIONS, **_OWN}
"""By name."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A parsed command line; `faults` has what is wrong with it."""

    options: AdviseOptions
    rest: EstimateCommand
    """Everything else, read as for an estimate."""
    wants_help: bool
    faults: tuple[Fault, ...]


def read_command(words: Sequence[str]) -> Command:
    """Parse `words` (argv without the program)."""
    given = read_given(AdviseOptions, as_pairs(words, rest=LAUNCH))
    rest = read_estimate(given.others, OPTIONS)
    faults = (*rest.faults, *given.reader.faults, *_card_faults(rest))
    return Command(options=given.options, rest=rest, wants_help=given.wants_help, faults=faults)


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


def usage() -> str:
    """Return the help text."""
    return f"""\
python -m profiler.advise config=FILE gpu=CARD [key=value ...]
python -m profiler.advise oom=LOG config=FILE [gpu=CARD] [key=value ...]
python -m profiler.advise oom=LOG

What to change so that training fits CARD: each change with what it saves, what
it costs and the lines to paste, what hurts least first, until it fits; then the
whole configuration as YAML for trl. With oom=LOG: which tensor the card refused
in that log, in which phase, whether memory or one piece of memory was missing,
and what to change.

{option_lines(_OWN.values(), indent=24)}
The card of a log is that of its message if gpu is not given. Without a model,
the answer is what the message says by itself. fail_if=does_not_fit ends with
exit code 4 if nothing makes it fit.

The other keys and FILE are those of python -m profiler.estimate, also
trl=VERSION, the release of trl that FILE is for.

Examples:
  python -m profiler.advise config=grpo.yaml gpu=rtx-4090-24gb
  python -m profiler.advise model=qwen2.5-7b tuning=lora gpu=24GiB margin=5%
  python -m profiler.advise oom=train.log config=grpo.yaml
"""
