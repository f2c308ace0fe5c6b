"""`python -m profiler.run [key=value ...] train.py [argument ...]`: run a training script and show its memory.

Exit codes: docs/exit_codes.md. Out of memory is an answer.
"""

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from profiler.command_line import as_command, print_error, print_line, print_text
from profiler.config.options.command_words import wants_help_first
from profiler.domain.errors import EXIT_ANSWER_IS_NO, EXIT_OK, EXIT_SOME_TRIALS_FAILED, Fault, UsageError
from profiler.domain.runs.other_runs import ScriptJob, ScriptRecord, ScriptSpec
from profiler.domain.runs.outcome import Status
from profiler.domain.trials.trial import Backend
from profiler.run.backend import Place, choose_place
from profiler.run.command import Command, JobCommand, ScriptEvents, ScriptOptions, read_command, usage
from profiler.run.job import run_job
from profiler.run.process import (
    in_new_processes,
    launcher_arguments,
    launcher_variables,
    run_in_process,
    with_second_runs,
)
from profiler.storage.files.foreign_files import read_bytes, reason
from profiler.storage.files.typed_json import to_json
from profiler.storage.records.record_folder import SCRIPTS, RecordFolder

SCRIPTS_FOLDER = "scripts"
"""Folder of the results of scripts, in `results_dir`."""

_MOST_BYTES = 1 << 24


@as_command("run")
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command `argv` (without the program) and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if wants_help_first(words):
        print_text(usage())
        return EXIT_OK
    command = read_command(words)
    if isinstance(command, JobCommand):
        return run_job(command)
    folder = Path(command.options.results_dir).expanduser() / SCRIPTS_FOLDER / command.script.stem
    RecordFolder(folder, SCRIPTS).read_all()  # a record of a newer version is found before anything starts
    place = choose_place(command.options, num_processes=_processes(command))
    environment = place.environment(num_processes=_processes(command), strict=command.options.strict)
    launched = launcher_variables(command, place.executable, environment)
    environment |= launched
    job = _job(command, place, folder)
    print_line(place.line + _note_on_processes(command))
    record = run_in_process(job, place.executable, environment, timeout_s=command.options.timeout_s)
    if place.backend is Backend.EMULATED:
        again = in_new_processes(
            place,
            launched=launched,
            num_processes=_processes(command),
            strict=command.options.strict,
            timeout_s=command.options.timeout_s,
        )
        record = with_second_runs(record, job, again, late_events=_wants_late_events(command))
    # Imported here, because importing matplotlib and pandas takes longer than everything before.
    from profiler.run.results import report_run

    report_run(folder, record)
    return exit_code(record, command.options)


def exit_code(record: ScriptRecord, options: ScriptOptions) -> int:
    """Return the exit code of a run, and print why it has no answer if it has none."""
    if options.fail_if is not None and record.outcome.status is Status.OOM:
        return EXIT_ANSWER_IS_NO
    if record.outcome.status.answered:
        return EXIT_OK
    print_error(f"{Path(record.spec.script).name} has no answer ({record.outcome.status}): {record.outcome.message}")
    return EXIT_SOME_TRIALS_FAILED


def _processes(command: Command) -> int:
    return command.options.num_processes or command.launch.num_processes or 1


def _wants_late_events(command: Command) -> bool:
    """Whether both bounds are reported: memory of other streams matters where several processes communicate."""
    asked = command.options.events
    return _processes(command) > 1 if asked is None else asked is ScriptEvents.BOTH


def _note_on_processes(command: Command) -> str:
    if not command.launch.words or command.options.num_processes or command.launch.num_processes:
        return ""
    return f" {command.launch.words[0]} does not say how many processes: one runs, and num_processes=8 sets eight."


def _job(command: Command, place: Place, folder: Path) -> ScriptJob:
    options = command.options
    spec = ScriptSpec(
        script=str(command.script),
        arguments=(*launcher_arguments(command), *command.arguments),
        launcher=command.launch.words,
        backend=place.backend,
        gpu=place.gpu,
        steps=options.steps,
        num_processes=_processes(command),
        weights=options.weights,
        prompt_tokens=options.prompt_tokens,
        completion_tokens=options.completion_tokens,
        alloc_conf=os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or "",
    )
    digest = hashlib.sha256(_text_of(command.script)).hexdigest()
    identity = json.dumps([to_json(spec), digest, to_json(place.versions)], sort_keys=True)
    return ScriptJob(
        run_id=hashlib.sha256(identity.encode()).hexdigest()[:16],
        spec=spec,
        script_sha256=digest,
        versions=place.versions,
        folder=str(folder.absolute()),
        snapshot=options.snapshot,
        breakdown=options.breakdown,
        sample_period_s=options.sample_period_s if place.backend is Backend.CUDA else None,
        card=place.card,
    )


def _text_of(script: Path) -> bytes:
    try:
        return read_bytes(script, most_bytes=_MOST_BYTES)
    except OSError as error:
        raise UsageError(
            [Fault(key="script", found=str(script), problem=f"cannot be read ({reason(error)})")]
        ) from error
