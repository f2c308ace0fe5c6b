"""`python -m profiler.solve KEY [key=value ...]`: the largest value of a key with which training fits a card.

Exit codes: docs/exit_codes.md. That nothing fits is an answer too, and ends with 0, unless `fail_if` says otherwise.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product

from profiler.analytical.closed_form import refuse_without_form
from profiler.analytical.explanation.boundary import largest_that_fits
from profiler.analytical.explanation.cards import CardVerdict, all_cards, card_verdict
from profiler.command_line import as_command, print_error, print_text
from profiler.config.grid import refuse_too_many_points
from profiler.config.key_help import trial_keys_help
from profiler.config.rules import only_estimated
from profiler.config.specification import parse_point
from profiler.domain.errors import EXIT_ANSWER_IS_NO, EXIT_OK, Fault, UsageError
from profiler.domain.extras import TRAINING, Extra, install_hint, listed, missing
from profiler.domain.gpu_names import gpu_named
from profiler.domain.trial import Backend, TrialSpec, key_named
from profiler.estimate.command import OutputFormat
from profiler.estimate.inputs import (
    ArchitectureLookup,
    Inputs,
    ModelConfigLoader,
    architecture_lookup,
    job_files,
    read_inputs,
)
from profiler.estimate.reward_models import with_reward_models
from profiler.rendering.solve_table import (
    CardAnswer,
    KeyAnswer,
    SimulatedSide,
    card_text,
    key_text,
    leaves_free,
    solve_json,
)
from profiler.solve.command import CARD, Command, read_command
from profiler.solve.confirmation import simulated
from profiler.storage.model_config import load_model_config

_USAGE = """\
python -m profiler.solve KEY model=NAME gpu=CARD [key=value ...]
python -m profiler.solve KEY config=FILE.yaml gpu=CARD [key=value ...]
python -m profiler.solve gpu config=FILE.yaml

The largest value of KEY with which training fits CARD, and what the next value
would need. KEY gpu finds the smallest card. The closed form finds the boundary;
one simulation on each side confirms it.

  margin=5%      part of the card that has to stay free (default: 0)
  confirm=false  do not simulate; the answer then takes a second (default: true)
  format=json    for scripts (default: table)
  fail_if=does_not_fit   end with exit code 4 if no value, or no card, fits

FILE is as for python -m profiler.estimate. Several values of a key, separated by
commas, give one line each.

Keys of a trial [default]:
{keys}
Examples:
  python -m profiler.solve max_completion_length model=qwen2.5-7b tuning=lora
  python -m profiler.solve per_device_train_batch_size config=grpo.yaml
  python -m profiler.solve max_completion_length model=qwen2.5-3b beta=0,0.04
  python -m profiler.solve gpu config=grpo.yaml
"""

_MAXIMUM = 2**24
"""Largest value that is tried. No card holds a row of so many tokens, or so many rows."""

Simulate = Callable[[Mapping[int, TrialSpec]], Sequence[SimulatedSide]]
"""Returns the simulation of trials by their value of the key."""


@as_command("solve")
def main(
    argv: Sequence[str] | None = None,
    *,
    load_model: ModelConfigLoader = load_model_config,
    simulate: Simulate = simulated,
) -> int:
    """Print the answer for `argv` (without the program) and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    command = read_command(words)
    if command.rest.wants_help:
        print_text(_USAGE.format(keys=trial_keys_help(given=Backend.SIMULATED)))
        return EXIT_OK
    architecture_of = architecture_lookup(load_model)
    inputs, architecture_of = with_reward_models(_inputs(command), architecture_of)
    if inputs.faults:
        raise UsageError(inputs.faults)
    if inputs.ignored:
        print_error(inputs.ignored)
    solve = _cards if command.key == CARD else _values
    text, fits = solve(command, inputs, architecture_of, simulate)
    print_text(text)
    return EXIT_ANSWER_IS_NO if command.rest.fail_if is not None and not fits else EXIT_OK


def _inputs(command: Command) -> Inputs:
    """Return the untyped keys of the command and its file.

    Raises:
        UsageError: With every fault of both.
    """
    files = job_files(command.rest)
    faults = list(command.faults)
    if files.verl is not None:
        problem = "is a configuration of verl, for which there is only an estimate"
        raise UsageError([*faults, Fault(key="config", found=", ".join(command.rest.configs), problem=problem)])
    if command.rest.any_card:
        problem = "asks for every card; `python -m profiler.solve gpu` finds the smallest"
        faults.append(Fault(key="gpu", found="any", problem=problem))
    inputs = read_inputs(command.rest, files.part)
    if faults or inputs.faults:
        raise UsageError(tuple(dict.fromkeys((*faults, *inputs.faults))))
    return inputs


def _cards(command: Command, inputs: Inputs, architecture_of: ArchitectureLookup, _: Simulate) -> tuple[str, bool]:
    """Return the answer for the card, and whether there is one."""
    if command.rest.axes:
        names = ", ".join(command.rest.axes)
        raise UsageError([Fault(key=names, found="several values", problem="solve gpu takes one value per key")])
    spec = parse_point(inputs.keys, architecture_of=architecture_of)
    answer = CardAnswer(spec=spec, cards=all_cards(spec, architecture_of(spec.model)), margin=command.margin)
    is_json = command.rest.output_format is OutputFormat.JSON
    text = solve_json([answer], inputs.notes) if is_json else card_text(answer, inputs.notes)
    return text, answer.smallest is not None


def _values(
    command: Command, inputs: Inputs, architecture_of: ArchitectureLookup, simulate: Simulate
) -> tuple[str, bool]:
    """Return the answers for a key, and whether each has a value that fits."""
    axes = command.rest.axes
    refuse_too_many_points(axes)
    points = [{**inputs.keys, **dict(zip(axes, values, strict=True))} for values in product(*axes.values())]
    answers = [_Boundary(command, point, architecture_of).answer() for point in points]
    specs = [spec for answer in answers for spec in answer.specs.values()]
    if command.confirm and only_estimated(specs):
        names = ", ".join(dict.fromkeys(fault.key for fault in only_estimated(specs)))
        print_error(f"Not simulated, because only an estimate knows {names} yet.")
    elif command.confirm and (absent := missing(TRAINING)):
        print_error(f"Not simulated, because {listed(absent)} are not installed. {install_hint(Extra.SIMULATE)}")
    elif command.confirm:
        print_error("Simulating both sides of each boundary; confirm=false does without.")
        answers = [replace(answer, sides=tuple(simulate(answer.specs))) for answer in answers]
    is_json = command.rest.output_format is OutputFormat.JSON
    text = solve_json(answers, inputs.notes) if is_json else key_text(answers, inputs.notes)
    return text, all(answer.boundary.largest is not None for answer in answers)


class _Boundary:
    """The boundary of one key at one point."""

    def __init__(self, command: Command, point: Mapping[str, object], architecture_of: ArchitectureLookup) -> None:
        self._command, self._point, self._architecture_of = command, point, architecture_of
        self._key = key_named(command.key)

    def answer(self) -> KeyAnswer:
        """Return the boundary.

        Raises:
            UsageError: No value of the key is allowed.
        """
        first = self._first_allowed()
        refuse_without_form(first, self._architecture_of(first.model))
        boundary = largest_that_fits(
            self._verdict, self._fits, minimum=getattr(first, self._key.name), maximum=_MAXIMUM
        )
        values = [value for value in (boundary.largest, boundary.beyond) if value is not None]
        return KeyAnswer(
            key=self._key.name,
            specs={value: self._parsed(value) for value in values},
            axes=tuple(self._command.rest.axes),
            boundary=boundary,
            margin=self._command.margin,
        )

    def _first_allowed(self) -> TrialSpec:
        """Return the trial with the smallest allowed value; its faults are those of the input, not of the value."""
        boundary = largest_that_fits(
            self._allowed, lambda _: False, minimum=self._key.minimum, maximum=min(_MAXIMUM, self._key.maximum)
        )
        return boundary.at_beyond or self._parsed(self._key.minimum)

    def _parsed(self, value: int) -> TrialSpec:
        return parse_point({**self._point, self._key.name: value}, architecture_of=self._architecture_of)

    def _allowed(self, value: int) -> TrialSpec | None:
        try:
            return self._parsed(value)
        except UsageError:
            return None

    def _verdict(self, value: int) -> CardVerdict | None:
        spec = self._allowed(value)
        if spec is None:
            return None
        return card_verdict(spec, self._architecture_of(spec.model), gpu_named(str(spec.gpu)))

    def _fits(self, card: CardVerdict) -> bool:
        return leaves_free(card, self._command.margin)
