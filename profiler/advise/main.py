"""`python -m profiler.advise [key=value ...]`: what to change so that training fits a card, or why it did not.

Exit codes: docs/exit_codes.md. That nothing fits is an answer too, and ends with 0, unless `fail_if` says otherwise.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from profiler.advise.command import OOM, Command, read_command, usage
from profiler.advise.oom.cause import SimulatedTrial, simulate_requests
from profiler.advise.oom.diagnosis import card_of, diagnosis, diagnosis_alone, more_by_simulation
from profiler.advise.plan import Advisor
from profiler.allocator.oom_message import OomReport, find_oom
from profiler.analytical.estimate import refuse_without_form
from profiler.analytical.explanation.explained import Fit
from profiler.command_line import as_command, print_error, print_text
from profiler.config.options.option import OutputFormat
from profiler.constraints.table import refuse_without_card
from profiler.domain.errors import EXIT_ANSWER_IS_NO, EXIT_OK, Fault, UsageError
from profiler.domain.memory import GIB, MIB, as_gib
from profiler.domain.models.builtin_models import find_builtin
from profiler.domain.trials.trial import TrialSpec
from profiler.estimate.job.inputs import (
    Inputs,
    JobFiles,
    ModelConfigLoader,
    architecture_lookup,
    job_files,
    read_inputs,
)
from profiler.estimate.job.trial import parsed_trial, refuse_open, why_not_simulated, with_reward_models
from profiler.rendering.answers.advice import (
    advice_blocks,
    advice_json,
    advice_object,
    advice_text,
    refusal_text,
)
from profiler.rendering.layouts.plain_text import json_text
from profiler.storage.files.foreign_files import expanded, read_bytes, reason
from profiler.storage.foreign.model_config import load_model_config

_NAME_THE_JOB = "Name the job (config=FILE or model=NAME) to see which tensor it was, and what makes the job fit."

_MOST_LOG_BYTES = 64 * MIB

_LARGEST_CARD_BYTES = 1024 * GIB
"""A card of more memory than any is not taken from a message, nor one of less than a GiB."""

Simulate = Callable[..., SimulatedTrial]
"""Returns the simulated requests of a trial, as `simulate_requests`."""


@as_command("advise")
def main(
    argv: Sequence[str] | None = None,
    *,
    load_model: ModelConfigLoader = load_model_config,
    simulate: Simulate = simulate_requests,
) -> int:
    """Print the advice for `argv` (without the program) and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    command = read_command(words)
    if command.wants_help:
        print_text(usage())
        return EXIT_OK
    architecture_of = architecture_lookup(load_model)
    report = _report(command)
    files, read = job_of(command, report)
    if report is not None and read.keys.get("model") is None and command.rest.options.fail_if is None:
        return _print_alone(command, report)
    inputs, architecture_of = with_reward_models(read, architecture_of)
    if inputs.faults:
        raise UsageError(inputs.faults)
    for line in filter(None, (inputs.ignored, inputs.open_sizes)):
        print_error(line)
    parsed = parsed_trial(inputs, architecture_of)
    refuse_open(parsed)
    spec, notes = parsed.spec, parsed.notes
    refuse_without_form(spec, architecture_of(spec.model))
    refuse_without_card(spec)
    given = files.part.values if files.part is not None else {}
    advice = Advisor(command.options.margin, architecture_of).advice(spec, given)
    trial = _simulated(command, spec, report, load_model, simulate) if report is not None else None
    if trial is not None and trial.refuses and advice.card.fit is Fit.FITS:
        more = more_by_simulation(trial, advice.card)
        advice = Advisor(command.options.margin, architecture_of, more_bytes=more).advice(spec, given)
    is_no = not advice.fits or not advice.last.starts
    code = EXIT_ANSWER_IS_NO if command.rest.options.fail_if is not None and is_no else EXIT_OK
    if report is None:
        is_json = command.options.output_format is OutputFormat.JSON
        print_text(advice_json(advice, notes) if is_json else advice_text(advice, notes))
        return code
    answer = diagnosis(report, advice, architecture_of(spec.model), trial)
    if command.options.output_format is OutputFormat.JSON:
        print_text(json_text({"oom": answer.as_object(), "advice": advice_object(advice, notes)}))
    else:
        print_text(refusal_text(answer, advice_blocks(advice, notes)))
    return code


def _print_alone(command: Command, report: OomReport) -> int:
    """Print what the message of a log says without its job, and return the exit code."""
    answer = diagnosis_alone(report, _NAME_THE_JOB)
    if command.options.output_format is OutputFormat.JSON:
        print_text(json_text({"oom": answer.as_object(), "advice": None}))
    else:
        print_text(refusal_text(answer))
    return EXIT_OK


def _report(command: Command) -> OomReport | None:
    """Return the out-of-memory error of the log; None if the command names none.

    Raises:
        UsageError: The log cannot be read or has no such error, or the command line is wrong.
    """
    if command.options.log is None:
        return None
    try:
        text = read_bytes(expanded(command.options.log), most_bytes=_MOST_LOG_BYTES).decode(errors="replace")
    except OSError as error:
        problem = f"cannot be read ({reason(error)})"
        raise UsageError([*command.faults, Fault(key=OOM, found=command.options.log, problem=problem)]) from error
    report = find_oom(text)
    if report is None:
        problem = "has no out-of-memory error of PyTorch (CUDA out of memory. Tried to allocate ...)"
        raise UsageError([*command.faults, Fault(key=OOM, found=command.options.log, problem=problem)])
    return report


def job_of(command: Command, report: OomReport | None) -> tuple[JobFiles, Inputs]:
    """Return the files of the command, and its keys, on the card of the log if the command names none.

    Raises:
        UsageError: With every fault of both.
    """
    files = job_files(command.rest)
    faults = list(command.faults)
    if files.verl is not None:
        problem = "is a configuration of verl, for which there is only an estimate"
        hint = "Leave it out to read the message alone." if report is not None else ""
        raise UsageError(
            [*faults, Fault(key="config", found=", ".join(command.rest.configs), problem=problem, hint=hint)]
        )
    rest = command.rest
    total = report.message.total_bytes if report is not None else None
    if report is not None and total is not None and GIB <= total <= _LARGEST_CARD_BYTES and "gpu" not in rest.keys:
        card = card_of(report.message)
        rest = replace(rest, keys={**rest.keys, "gpu": card.name if card is not None else f"{as_gib(total):.4g}GiB"})
    inputs = read_inputs(rest, files.part)
    if faults or inputs.faults:
        raise UsageError(tuple(dict.fromkeys((*faults, *inputs.faults))))
    return files, inputs


def _simulated(
    command: Command, spec: TrialSpec, report: OomReport, load_model: ModelConfigLoader, simulate: Simulate
) -> SimulatedTrial | None:
    """Return the simulation of the trial; None if the command asks for none or only an estimate knows the trial."""
    if not command.options.confirm:
        return None
    if reason := why_not_simulated([spec], architecture_lookup(load_model)):
        print_error(reason)
        return None
    print_error("Simulating the job; confirm=false does without.")
    builtin = find_builtin(spec.model)
    config = builtin.config if builtin is not None else load_model(spec.model)
    return simulate(spec, config, allocated_bytes=report.message.allocated_bytes or 0)
