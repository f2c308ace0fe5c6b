"""`python -m profiler.estimate model=NAME [key=value ...]`: the memory of a trial, or of a grid, in closed form.

Exit codes: docs/exit_codes.md. An estimate that does not fit ends with 0, unless `fail_if` says otherwise.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from textwrap import fill

from profiler.analytical.explanation.bounds import explain_bounds, without_sharding
from profiler.analytical.explanation.explained import ExplainedEstimate, Fit, Unanswered, all_cards, explain
from profiler.command_line import as_command, print_error, print_text
from profiler.config.models.context import images_line, model_lines
from profiler.config.options.option import OutputFormat
from profiler.config.options.reading import show
from profiler.config.trials.specification import attention_line
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.errors import EXIT_ANSWER_IS_NO, EXIT_OK, FailIf, Fault, UsageError
from profiler.domain.memory import gib_text
from profiler.domain.runs.outcome import Outcome, Status, Verdict
from profiler.domain.trials.kernels import OtherKernels
from profiler.domain.trials.trial import TrialSpec
from profiler.estimate.command import HOST, PER_NODE, Command, EstimateOptions, read_command, usage
from profiler.estimate.grid import answered_grid
from profiler.estimate.job.counting import length_file
from profiler.estimate.job.inputs import Inputs, ModelConfigLoader, architecture_lookup, job_files, read_inputs
from profiler.estimate.job.trial import notes_of_all, parsed_trial, why_not_simulated, with_reward_models
from profiler.rendering.estimate.card_list import card_list, card_list_json, grid_json, grid_table
from profiler.rendering.estimate.table import estimate_json, estimate_table
from profiler.rendering.layouts.plain_text import WIDTH
from profiler.storage.foreign.model_config import load_model_config
from profiler.storage.foreign.number_files import (
    LENGTHS,
    length_fault,
    load_prices,
    unknown_cards_line,
)

Simulate = Callable[[TrialSpec], Outcome]
"""Returns the simulation of a trial."""

ONLY_ESTIMATED = "Not simulated: there is only an estimate of jobs of verl."
"""Said where a simulation is asked for."""


def simulated_outcome(spec: TrialSpec) -> Outcome:
    """Return the simulation of a trial, in a process of its own, because commands import no torch."""
    from profiler.execution import records_of  # the bare distribution has not all that it imports

    (record,) = records_of([spec])
    if record is None:
        return Outcome(verdict=Verdict(status=Status.FAILED, message="its process left no record"))
    return record.outcome


@as_command("estimate")
def main(
    argv: Sequence[str] | None = None,
    *,
    load_model: ModelConfigLoader = load_model_config,
    simulate: Simulate = simulated_outcome,
) -> int:
    """Print the estimate for `argv` (without the program) and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    found = _answered(words, load_model=load_model, say=print_error, simulate=simulate)
    print_text(found.text)
    return EXIT_ANSWER_IS_NO if found.is_no else EXIT_OK


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """The output of a command."""

    text: str
    is_no: bool = False
    """Whether `fail_if` asks for the verdict that was found."""


def _keep_silent(line: str) -> None:
    """Drop `line`."""


def answer(
    words: Sequence[str],
    *,
    load_model: ModelConfigLoader = load_model_config,
    say: Callable[[str], None] = _keep_silent,
) -> str:
    """Return the output for `words`, as `_answered`.

    Args:
        words: The command line without the program.
        load_model: The content of the `config.json` of a model that is not built in.
        say: Called with each line that is not part of the answer.

    Raises:
        UsageError: With all faults that were found.
    """
    return _answered(words, load_model=load_model, say=say).text


def _answered(
    words: Sequence[str],
    *,
    load_model: ModelConfigLoader,
    say: Callable[[str], None],
    simulate: Simulate = simulated_outcome,
) -> _Answer:
    command = read_command(words)
    if command.wants_help:
        return _Answer(text=usage())
    architecture_of = architecture_lookup(load_model)
    files = job_files(command)
    if files.verl is not None:
        refuse_host_of_verl(command.options)
        if command.options.confirm:
            say(ONLY_ESTIMATED)
        from profiler.estimate.verl import verl_answer  # 15 ms, for jobs of verl alone

        text, fit = verl_answer(command, files.verl, architecture_of, say)
        return _Answer(text=text, is_no=fails(command.options.fail_if, [fit]))
    inputs = read_inputs(command, files.part, with_bounds=True)
    if inputs.kernels is not None:
        refuse_with_bounds(command, inputs.kernels)
    common, architecture_of = with_reward_models(inputs, architecture_of)
    if common.ignored:
        say(common.ignored)
    if command.any_card:
        answer = _cards_answer(command, common, architecture_of, say)
    elif command.axes:
        answer = _grid_answer(command, common, architecture_of)
    else:
        found = explained_trial(common, architecture_of, command.options)
        outcome = None
        if command.options.confirm:
            outcome = confirmed(found.explained.spec, architecture_of, simulate, say)
        answer = _trial_answer(command, found, architecture_of, outcome)
    if common.open_sizes:
        say(common.open_sizes)
    return answer


def refuse_host_of_verl(options: EstimateOptions) -> None:
    """Raise if a verdict for the host of a job of verl is asked for.

    Raises:
        UsageError: It is.
    """
    problem = "has no formula for jobs of verl, whose processes Ray starts; leave it out"
    given = {HOST: options.host and gib_text(options.host), PER_NODE: options.gpus_per_node}
    faults = [Fault(key=key, found=str(value), problem=problem) for key, value in given.items() if value is not None]
    if faults:
        raise UsageError(faults)


def refuse_with_bounds(command: Command, kernels: OtherKernels, *, confirm: bool = False) -> None:
    """Raise if more is asked for than the bounds of one job on one GPU.

    Raises:
        UsageError: It is.
    """
    options = command.options
    asked: dict[str, object] = {
        "confirm": True if options.confirm or confirm else None,
        HOST: options.host,
        PER_NODE: options.gpus_per_node,
        LENGTHS: command.lengths_file,
        "gpu": "any" if command.any_card else None,
        **command.axes,
    }
    problem = f"asks for more than the bounds of one job on one card, which is all there is of {kernels.program}"
    faults = [Fault(key=key, found=show(each), problem=problem) for key, each in asked.items() if each is not None]
    if faults:
        raise UsageError(faults)


def fails(fail_if: FailIf | None, verdicts: Iterable[Fit | Unanswered | None]) -> bool:
    """Return whether one of `verdicts` is what `fail_if` asks for."""
    failing: set[Fit | Unanswered] = {Fit.TOO_LARGE, Fit.NO_ENGINE, Fit.NO_KERNEL, Unanswered.NOT_POSSIBLE}
    if fail_if is FailIf.TIGHT:
        failing |= {Fit.TIGHT, Fit.UNDECIDED}
    return fail_if is not None and any(verdict in failing for verdict in verdicts)


def _cards_answer(
    command: Command, common: Inputs, architecture_of: Callable[[str], Architecture], say: Callable[[str], None]
) -> _Answer:
    parsed = parsed_trial(common, architecture_of)
    spec, notes = parsed.spec, parsed.notes
    prices = load_prices(command.options.prices) if command.options.prices is not None else None
    if prices is not None and unknown_cards_line(prices):
        say(unknown_cards_line(prices))
    notes = with_images_line(notes, spec, architecture_of(spec.model))
    cards = all_cards(spec, architecture_of(spec.model))
    if parsed.refusal is not None:
        cards = without_sharding(cards, spec, architecture_of(spec.model))
    show_cards = card_list_json if command.options.output_format is OutputFormat.JSON else card_list
    text = show_cards(spec, cards, prices.by_card if prices is not None else None, notes)
    return _Answer(text=text, is_no=all(fails(command.options.fail_if, [card.fit]) for card in cards))


def confirmed(
    spec: TrialSpec,
    architecture_of: Callable[[str], Architecture],
    simulate: Simulate,
    say: Callable[[str], None],
) -> Outcome | None:
    """Return the simulated outcome of a trial; None, with a reason said, if only an estimate knows it."""
    if reason := why_not_simulated([spec], architecture_of):
        say(reason)
        return None
    return simulate(spec)


def _trial_answer(
    command: Command,
    found: "ExplainedTrial",
    architecture_of: Callable[[str], Architecture],
    simulated: Outcome | None,
) -> _Answer:
    spec, explained = found.explained.spec, found.explained
    fits = [card.fit for card in explained.cards if card.gpu.name == spec.gpu]
    decisive = fits if simulated is None else [simulated_fit(simulated) or fits[0]]
    is_no = fails(command.options.fail_if, [*decisive, None if explained.host is None else explained.host.fit])
    path, tokenizer = command.lengths_file, command.options.tokenizer
    needs = None if path is None else by_lengths(path, tokenizer, spec, architecture_of)
    if command.options.output_format is OutputFormat.JSON:
        own = None if needs is None else needs.values
        text = estimate_json(explained, notes=found.notes, simulated=simulated, by_lengths=own)
        return _Answer(text=text, is_no=is_no)
    attention = attention_line(spec, architecture_of(spec.model))
    lines = [*found.notes, *([attention] if attention else []), *([needs.sentence] if needs is not None else [])]
    text = estimate_table(
        explained, lines, decided_by=found.decided_by, details=command.options.details, simulated=simulated
    )
    return _Answer(text=text, is_no=is_no)


@dataclass(frozen=True, kw_only=True)
class ByLengths:
    """What parts of the steps need with the lengths of a file, as a sentence and as values of JSON."""

    sentence: str
    values: object


def by_lengths(
    path: str, tokenizer: str | None, spec: TrialSpec, architecture_of: Callable[[str], Architecture]
) -> ByLengths:
    """Return what a typical step and almost all steps need on the trial's card, with the lengths of a file.

    Raises:
        UsageError: The file has no lengths, or it is unknown how the trainer groups such rows.
    """
    # Imported here, as most estimates read no lengths.
    from profiler.analysis.forecast.lengths import (
        WIDTH_STEPS,
        Distribution,
        Law,
        Recorded,
        RowCounts,
        RunLengths,
        Source,
        step_widths,
    )
    from profiler.domain.runs.forecast import why_rows_are_unknown
    from profiler.rendering.answers.forecast import lengths_object, lengths_sentence

    if fault := why_rows_are_unknown(spec):
        raise UsageError([replace(fault, problem=f"{fault.problem}; leave {LENGTHS}={path} out")])
    has_rollout, has_prompts = spec.recipe.facts.has_rollout, spec.recipe.facts.has_prompts
    file = length_file(path, tokenizer, has_prompts=has_prompts)
    if not file.completions:
        raise length_fault(path, "has prompts and no completions")
    prompts: Source | None = None
    if has_prompts:
        prompts = Distribution(Law.FIXED, spec.max_prompt_length)
        if file.prompts:
            prompts = Recorded(file.prompts, is_data_set=True)
    lengths = RunLengths(prompts=prompts, completions=Recorded(file.completions, is_data_set=not has_rollout))
    found = {}
    for part, widths in step_widths(lengths, RowCounts.of(spec, WIDTH_STEPS)).items():
        if has_rollout:
            shorter = replace(spec, max_prompt_length=widths.prompt, max_completion_length=widths.completion)
        else:
            prompt = widths.prompt if has_prompts else spec.max_prompt_length
            shorter = replace(spec, max_prompt_length=prompt, max_length=widths.prompt + widths.completion)
        cards = explain(shorter, architecture_of(spec.model)).cards
        (card,) = (card for card in cards if card.gpu.name == spec.gpu)
        found[part] = widths, card
    return ByLengths(sentence=lengths_sentence(found, path, spec), values=lengths_object(found))


def simulated_fit(outcome: Outcome) -> Fit | None:
    """Return the verdict of a simulation; None if it has none."""
    return {Status.OK: Fit.FITS, Status.OOM: Fit.TOO_LARGE}.get(outcome.status)


@dataclass(frozen=True, kw_only=True)
class ExplainedTrial:
    """The estimate of the trial that a command and its files describe."""

    explained: ExplainedEstimate
    notes: tuple[str, ...]
    """What was assumed, and what is not counted; a sentence each."""
    decided_by: str
    """As of `ParsedTrial`."""


def explained_trial(
    common: Inputs, architecture_of: Callable[[str], Architecture], options: EstimateOptions
) -> ExplainedTrial:
    """Return the estimate of one trial with its reasons, and the verdict for the host of the options.

    Raises:
        UsageError: With every fault of the keys and files, or the trial has no closed form.
    """
    parsed = parsed_trial(common, architecture_of)
    architecture = architecture_of(parsed.spec.model)
    if parsed.kernels is not None:
        explained = explain_bounds(parsed.spec, architecture, parsed.kernels)
    else:
        explained = explain(parsed.spec, architecture, host_bytes=options.host, gpus_per_node=options.gpus_per_node)
    if parsed.refusal is not None:
        explained = replace(explained, cards=without_sharding(explained.cards, parsed.spec, architecture))
    return ExplainedTrial(
        explained=explained,
        notes=with_images_line(parsed.notes, parsed.spec, architecture),
        decided_by=parsed.decided_by,
    )


def _grid_answer(command: Command, common: Inputs, architecture_of: Callable[[str], Architecture]) -> _Answer:
    grid = answered_grid(common, command.axes, architecture_of)
    specs = [point.spec for point in grid.points]
    architectures = {model: architecture_of(model) for model in dict.fromkeys(spec.model for spec in specs)}
    is_no = fails(command.options.fail_if, [point.fit for point in grid.points])
    unsharded = [point.spec for point in grid.points if point.is_open]
    notes = notes_of_all(common, specs, architecture_of, unsharded=unsharded)
    if command.options.output_format is OutputFormat.JSON:
        return _Answer(text=grid_json(grid, notes), is_no=is_no)
    images = dict.fromkeys(images_line(spec, architectures[spec.model], with_prompt=False) for spec in specs)
    lines = dict.fromkeys(
        line
        for spec in specs
        for line in (attention_line(spec, architectures[spec.model]), *model_lines(spec, architectures[spec.model]))
    )
    return _Answer(text=_lines(tuple(images), notes, tuple(lines)) + grid_table(grid), is_no=is_no)


def with_images_line(notes: Sequence[str], spec: TrialSpec, architecture: Architecture) -> tuple[str, ...]:
    """Return `notes` after what is assumed about images, if the model sees some."""
    line = images_line(spec, architecture)
    return (line, *notes) if line else tuple(notes)


def _lines(*parts: Sequence[str]) -> str:
    return "".join(f"{fill(line, WIDTH, break_on_hyphens=False)}\n" for lines in parts for line in lines if line)
