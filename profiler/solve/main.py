"""`python -m profiler.solve KEY [key=value ...]`: the largest value of a key with which training fits a card.

Exit codes: docs/exit_codes.md. That nothing fits is an answer too, and ends with 0, unless `fail_if` says otherwise.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from profiler.command_line import as_command, print_error, print_text
from profiler.commands import COMMANDS, FIGURE
from profiler.config.models.context import model_lines
from profiler.config.prices import Price
from profiler.config.trials.grid import refuse_too_many_points
from profiler.domain.errors import EXIT_ANSWER_IS_NO, EXIT_OK, Fault, UsageError
from profiler.estimate.job.inputs import (
    ArchitectureLookup,
    Inputs,
    ModelConfigLoader,
    architecture_lookup,
    job_files,
    read_inputs,
)
from profiler.estimate.job.trial import notes_of_all, why_not_simulated, with_reward_models
from profiler.measurement.samples.host_usage import usable_cores
from profiler.rendering.answers.solve import (
    ChoiceAnswer,
    Decided,
    KeyAnswer,
    choice_text,
    key_text,
    line_json,
    line_text,
    solve_json,
)
from profiler.rendering.document import FigureKind
from profiler.solve.choices import cards, counts, members, peak_text, rented
from profiler.solve.command import CARD, CHOICES, COUNT, MODEL, Command, read_command, usage
from profiler.solve.search import Confirmation, KeySearch, NoAnswerError, Simulate, is_as_near, limit_lines, simulated
from profiler.storage.files.atomic import write_atomically
from profiler.storage.foreign.model_config import load_model_config
from profiler.storage.foreign.number_files import PUBLISHED, load_prices


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
    if command.wants_help:
        print_text(usage())
        return EXIT_OK
    architecture_of = architecture_lookup(load_model)
    inputs, architecture_of = with_reward_models(job_of(command), architecture_of)
    if inputs.faults:
        raise UsageError(inputs.faults)
    if inputs.ignored:
        print_error(inputs.ignored)
    if len(command.keys) > 1:
        text, fits = _line(command, inputs, architecture_of)
    else:
        solve = _choice if command.keys[0] in CHOICES else _values
        text, fits = solve(command, inputs, architecture_of, simulate)
    if inputs.open_sizes:
        print_error(inputs.open_sizes)
    print_text(text)
    return EXIT_ANSWER_IS_NO if command.rest.options.fail_if is not None and not fits else EXIT_OK


def job_of(command: Command) -> Inputs:
    """Return the untyped keys of the command and its file.

    Raises:
        UsageError: With every fault of both.
    """
    files, faults = job_files(command.rest), list(command.faults)
    if files.verl is not None:
        problem = "is a configuration of verl, for which there is only an estimate"
        raise UsageError([*faults, Fault(key="config", found=", ".join(command.rest.configs), problem=problem)])
    if command.rest.any_card and not (command.keys == (CARD,) and command.rest.options.prices is not None):
        problem = "asks for every card; `python -m profiler.solve gpu` finds the smallest"
        faults.append(Fault(key="gpu", found="any", problem=problem))
    inputs = read_inputs(command.rest, files.part, solved=command.keys)
    if faults or inputs.faults:
        raise UsageError(tuple(dict.fromkeys((*faults, *inputs.faults))))
    return inputs


def _line(command: Command, inputs: Inputs, architecture_of: ArchitectureLookup) -> tuple[str, bool]:
    """Return the limit line of two keys, after drawing it where that is asked for, and whether a value fits."""
    figure = None if command.options.figure is None else Path(command.options.figure)
    if figure is not None:
        COMMANDS["solve"].uses[FIGURE].check("figure", str(figure))
    lines = limit_lines(command, inputs, architecture_of)
    if figure is not None:
        from profiler.rendering.figures.heat import limit_line_figure
        from profiler.rendering.figures.theme import as_kind  # matplotlib takes half a second

        kind = FigureKind(figure.suffix.removeprefix("."))
        write_atomically(figure, as_kind(limit_line_figure(lines), kind))
    notes = notes_of_all(inputs, [line.spec for line in lines], architecture_of)
    text = line_json(lines, notes) if command.is_json else line_text(lines, notes, figure=figure)
    return text, any(point.limit is not None for line in lines for point in line.points)


def _choice(command: Command, inputs: Inputs, architecture_of: ArchitectureLookup, _: Simulate) -> tuple[str, bool]:
    """Return the answer for a card, a number of GPUs or a model, and whether there is one."""
    answer, notes = choice_answer(command, inputs, architecture_of)
    text = solve_json([answer], notes) if command.is_json else choice_text(answer, notes)
    return text, answer.best is not None


def choice_answer(
    command: Command, inputs: Inputs, architecture_of: ArchitectureLookup
) -> tuple[ChoiceAnswer, tuple[str, ...]]:
    """Return the best card, number of GPUs or model, and what was assumed.

    Raises:
        UsageError: With every fault of the keys.
    """
    (key,) = command.keys
    if command.rest.axes:
        names = ", ".join(command.rest.axes)
        raise UsageError([Fault(key=names, found="several values", problem=f"solve {key} takes one value per key")])
    found = {CARD: cards, COUNT: counts, MODEL: members}[key](inputs, architecture_of)
    prices: Mapping[str, Price] = {}
    if key == CARD:
        found = found if command.options.all_cards else rented(found)
        prices = load_prices(command.rest.options.prices or PUBLISHED).by_card
    answer = ChoiceAnswer(key=key, spec=found.spec, choices=found.choices, margin=command.options.margin, prices=prices)
    is_counted = found.choices[-1].verdict is not None
    why_not = (peak_text(found.spec, architecture_of),) if key == COUNT and answer.best is None and is_counted else ()
    notes = notes_of_all(inputs, [found.spec], architecture_of, unsharded=found.unsharded)
    return answer, (*found.notes, *why_not, *notes, *model_lines(found.spec, architecture_of(found.spec.model)))


def _values(
    command: Command, inputs: Inputs, architecture_of: ArchitectureLookup, simulate: Simulate
) -> tuple[str, bool]:
    """Return the answers for a key, and whether each has a value that fits."""
    axes = command.rest.axes
    refuse_too_many_points(axes)
    points = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    searches = [_search(command, each, inputs, architecture_of) for each in points if command.options.confirm]
    if searches and simulate is simulated:
        firsts = [search.first_with_answer() for search in searches]
        if not why_not_simulated(firsts, architecture_of):
            from profiler.execution import begin_warming  # the bare distribution has not all that it imports

            begin_warming(firsts[0])
    answers = [key_answer(command, point, inputs, architecture_of) for point in points]
    specs = [spec for answer in answers for spec in answer.specs.values()]
    if searches and (reason := why_not_simulated(specs, architecture_of)):
        print_error(reason)
    elif searches:
        print_error("Simulating values near each boundary; confirm=false does without.")
        answers = [_confirmed(answer, search, simulate) for answer, search in zip(answers, searches, strict=True)]
    notes = notes_of_all(inputs, [spec for answer in answers for spec in answer.specs.values()], architecture_of)
    text = solve_json(answers, notes) if command.is_json else key_text(answers, notes)
    return text, all(answer.boundary.largest is not None for answer in answers)


def key_answer(
    command: Command, point: Mapping[str, object], inputs: Inputs, architecture_of: ArchitectureLookup
) -> KeyAnswer:
    """Return the boundary of the key at one point, with the trials on both sides of it."""
    (key,) = command.keys
    search = _search(command, point, inputs, architecture_of)
    boundary = search.boundary()
    values = [value for value in (boundary.largest, boundary.beyond) if value is not None]
    return KeyAnswer(
        key=key,
        specs={value: search.at(value) for value in values},
        axes=tuple(command.rest.axes),
        boundary=boundary,
        margin=command.options.margin,
    )


def _search(
    command: Command, point: Mapping[str, object], inputs: Inputs, architecture_of: ArchitectureLookup
) -> KeySearch:
    (key,), margin = command.keys, command.options.margin
    return KeySearch(key, point, inputs=inputs, margin=margin, architecture_of=architecture_of)


def _confirmed(answer: KeyAnswer, search: KeySearch, simulate: Simulate) -> KeyAnswer:
    """Return an answer that agrees with its own simulations, which decide where they differ from the estimate."""
    confirmation = Confirmation(answer.key, simulate, answer.margin, looks_ahead=usable_cores() > 1)
    try:
        boundary = search.boundary_near(answer.boundary, confirmation)
    except NoAnswerError:
        return replace(answer, sides=confirmation.sides, decided=Decided.UNDECIDED)
    by_both = is_as_near(boundary.largest, answer.boundary.largest)
    values = [value for value in (boundary.largest, boundary.beyond) if value is not None]
    return replace(
        answer,
        specs={value: search.at(value) for value in values},
        boundary=boundary,
        sides=confirmation.sides,
        decided=Decided.BOTH if by_both else Decided.SIMULATION,
        estimated=answer.boundary.largest,
    )
