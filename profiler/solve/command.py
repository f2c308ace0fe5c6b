"""The command line of `python -m profiler.solve`: one key or two, options, how they are read, and the help text."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from profiler.config.options.command_words import as_pairs, read_given
from profiler.config.options.option import FLAG, OutputFormat, option, options_of, path, ratio
from profiler.config.options.reading import FieldReader
from profiler.config.options.run_options import option_lines, trial_keys_help
from profiler.domain.errors import Fault, nearest
from profiler.domain.trials.keys import Kind, MemoryOrder
from profiler.domain.trials.trial import TRIAL_KEYS, Backend
from profiler.estimate.command import COMMON_OPTIONS, LAUNCH
from profiler.estimate.command import Command as EstimateCommand
from profiler.estimate.command import read_pairs as read_estimate
from profiler.rendering.document import FigureKind

CARD, COUNT, MODEL = "gpu", "num_processes", "model"

CHOICES = (CARD, COUNT, MODEL)
"""Names that ask for the smallest card, the fewest GPUs, and the largest model of a family."""

SOLVABLE = (
    *(key.name for key in TRIAL_KEYS if key.kind is Kind.COUNT and key.memory is MemoryOrder.GROWS),
    *CHOICES,
)
"""Keys with a largest value that fits, and what is chosen."""

FIGURE = "figure"

_MOST_KEYS = 2
_MOST_FIRST = 200
"""Most values of the first of two keys."""

MAX_MARGIN = 0.9
"""Largest part of a card that can be asked to stay free."""


@dataclass(frozen=True, kw_only=True)
class WithMargin:
    """Options of the commands that ask whether a trial fits a card and ask the simulation too."""

    margin: float = option(0.0, ratio(maximum=MAX_MARGIN), "part of the card that has to stay free, such as 5%")
    confirm: bool = option(
        True, FLAG, "ask the simulation too, in advise about the job of a log; false: formulas alone"
    )


@dataclass(frozen=True, kw_only=True)
class SolveOptions(WithMargin):
    """The options, in the order of the help text."""

    all_cards: bool = option(
        False, FLAG, "for gpu: also cards of laptops and desk computers, which nobody rents; false: without them"
    )
    figure: PurePath | None = option(
        None,
        path("a file", "FILE"),
        "draw the limit line of two keys, as .png, .svg or .pdf",
        null="no figure",
    )


_OWN = options_of(SolveOptions)

OPTIONS = {**_OWN, **COMMON_OPTIONS}
"""By name, in the order of the help text."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A parsed command line; `faults` has what is wrong with it."""

    keys: tuple[str, ...]
    """The key to find, or two, of which the second is found for each value of the first; empty if none was named."""
    first: tuple[object, ...]
    """Untyped values of the first of two keys; empty to choose them."""
    options: SolveOptions
    rest: EstimateCommand
    """Everything else, read as for an estimate."""
    wants_help: bool
    faults: tuple[Fault, ...]

    @property
    def is_json(self) -> bool:
        """Whether the answer is JSON."""
        return self.rest.options.output_format is OutputFormat.JSON


def read_command(words: Sequence[str]) -> Command:
    """Parse `words` (argv without the program)."""
    given = read_given(SolveOptions, as_pairs(words, rest=LAUNCH))
    named = [word for word in given.others if all(part.isidentifier() for part in word.split(","))]
    keys = tuple(key for word in named for key in word.split(","))
    rest = read_estimate([word for word in given.others if word not in named], OPTIONS)
    faults = list(rest.faults)
    first: tuple[object, ...] = ()
    if len(keys) == _MOST_KEYS and keys[0] in rest.axes:
        first = tuple(rest.axes[keys[0]])
        rest = replace(rest, axes={key: values for key, values in rest.axes.items() if key != keys[0]})
        if len(first) > _MOST_FIRST:
            problem = f"has {len(first):,} values, and at most {_MOST_FIRST} are tried"
            faults.append(Fault(key=keys[0], found=str(first[0]), problem=problem))
    faults += _key_faults(keys, rest)
    _check_figure(given.reader, given.options.figure, keys)
    return Command(
        keys=keys,
        first=first,
        options=given.options,
        rest=rest,
        wants_help=given.wants_help,
        faults=(*faults, *given.reader.faults),
    )


def _key_faults(names: Sequence[str], rest: EstimateCommand) -> list[Fault]:
    found = ",".join(names) or "none"
    if not 1 <= len(set(names)) == len(names) <= _MOST_KEYS:
        problem = f"name one key to solve for, or two with a comma between them: {', '.join(SOLVABLE)}"
        return [Fault(key="key", found=found, problem=problem)]
    for name in names:
        if name not in SOLVABLE:
            problem = f"has no largest value that fits; name one of {', '.join(SOLVABLE)}"
            return [Fault(key="key", found=name, problem=problem, hint=nearest(name, SOLVABLE))]
    if len(names) > 1 and (alone := [name for name in names if name in CHOICES]):
        hint = "Give several cards as gpu=a,b." if alone == [CARD] else ""
        return [Fault(key="key", found=found, problem=f"{alone[0]} is solved for by itself", hint=hint)]
    given = {**rest.keys, **rest.axes}
    return [
        Fault(key=name, found=str(given[name]), problem="is what is solved for; leave its value out")
        for name in names
        if name in given and name != MODEL  # it names the family
    ]


def _check_figure(reader: FieldReader, figure: PurePath | None, keys: Sequence[str]) -> None:
    suffixes = [f".{kind}" for kind in FigureKind]
    if figure is not None and len(keys) != _MOST_KEYS:
        reader.fail(FIGURE, "draws the limit line of two keys; name two")
    elif figure is not None and figure.suffix not in suffixes:
        reader.fail(FIGURE, f"must be a file that ends with {', '.join(suffixes)}")


def usage() -> str:
    """Return the help text."""
    return f"""\
python -m profiler.solve KEY model=NAME gpu=CARD [key=value ...]
python -m profiler.solve KEY config=FILE.yaml gpu=CARD [key=value ...]
python -m profiler.solve KEY,KEY config=FILE.yaml gpu=CARD [figure=FILE.png]
python -m profiler.solve gpu|num_processes|model config=FILE.yaml

The largest value of KEY with which training fits CARD, and what the next value
would need. KEY gpu finds the smallest card that is rented, and the cheapest by
prices, num_processes the fewest GPUs (1, 2,
4, ...; with FSDP, if nothing else is said), and model the largest built-in model
of the family that model=NAME is of. Two keys give a limit line: the
largest value of the second for each value of the first. The closed form finds
the boundary. From there it is searched by simulations, of long rows to 0.4 %,
and their boundary is the answer.

{option_lines(_OWN.values(), indent=24)}
{option_lines(COMMON_OPTIONS.values(), indent=24)}
FILE is as for python -m profiler.estimate: where the releases of trl that it can
be for differ, the dearest decides. fail_if ends with exit code 4 if no value, or
no card, fits. Several values of a key, separated by commas, give one line each.

Keys of a trial [default]:
{trial_keys_help(given=Backend.SIMULATED)}
Examples:
  python -m profiler.solve max_completion_length model=qwen2.5-7b tuning=lora
  python -m profiler.solve per_device_train_batch_size config=grpo.yaml
  python -m profiler.solve max_completion_length model=qwen2.5-3b beta=0,0.04
  python -m profiler.solve lora_rank,max_completion_length config=grpo.yaml
  python -m profiler.solve gpu config=grpo.yaml
  python -m profiler.solve num_processes model=qwen2.5-32b gpu=a100-80gb
  python -m profiler.solve model model=qwen2.5-7b tuning=qlora gpu=4090
"""
