"""`python -m profiler.forecast [key=value ...]`: whether a whole run survives, step by step.

Exit codes: docs/exit_codes.md. That a run dies is an answer too, and ends with 0, unless `fail_if` says otherwise.
"""

import hashlib
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from subprocess import PIPE

from profiler.analysis.forecast.lengths import RowCounts, Sampled, sampled
from profiler.analysis.forecast.outlook import Outlook, growth_against, settings_levers
from profiler.analysis.forecast.training_log import TrainingLog
from profiler.analytical.estimate import has_form
from profiler.analytical.explanation.explained import card_verdict
from profiler.command_line import as_command, print_error, print_text
from profiler.config.trials.identity import SIMULATION_RESULTS_VERSION, spec_from_mapping, spec_to_mapping
from profiler.constraints.table import refuse_without_card
from profiler.domain.cards.card import cuda_context_bytes
from profiler.domain.cards.gpu_names import gpu_named
from profiler.domain.errors import EXIT_ANSWER_IS_NO, EXIT_OK, Fault, ProfilerError, UsageError, shortened
from profiler.domain.machines.extras import safe_path_flags
from profiler.domain.models.builtin_models import find_builtin
from profiler.domain.runs.forecast import (
    ENGINE,
    AnswerLine,
    ForecastAnswer,
    ForecastRequest,
    ForecastRun,
    ForecastStep,
    Learnt,
    answer_of,
    line_of,
    note_of_processes,
    runs_of_seeds,
)
from profiler.domain.trials.trial import TrialSpec
from profiler.estimate.job.inputs import (
    ArchitectureLookup,
    Inputs,
    ModelConfigLoader,
    architecture_lookup,
    job_files,
    read_inputs,
)
from profiler.estimate.job.trial import dearest_spec, notes_of_all, why_not_simulated, with_reward_models
from profiler.forecast.command import DEFAULT_STEPS, LOG, STEPS, Command, read_command, usage
from profiler.forecast.inputs import (
    LengthInputs,
    Lever,
    length_inputs,
    limit_of_card,
    training_log,
    trial_levers,
    with_forecast,
)
from profiler.rendering.answers.forecast import (
    Forecast,
    LeverForecast,
    forecast_json,
    forecast_page,
    forecast_text,
    log_object,
    log_text,
)
from profiler.rendering.layouts.plain_text import json_text
from profiler.storage.files.atomic import write_atomically, write_parts_atomically
from profiler.storage.foreign.model_config import load_model_config

REQUEST, ANSWER, TABLE, PAGE, MARKDOWN = "request.json", "answer.jsonl", "steps.parquet", "report.html", "report.md"
"""Files of a forecast in its folder, `<results_dir>/forecast/<name>/`."""

_MOST_SAMPLED = 20_000_000
"""Most rows of all seeds (our choice): as JSON they are 100 MB."""

_SAY_AFTER_S = 10.0
"""How often the progress is said."""
_POLL_S = 0.2
_SLOW_LINES = 3  # what was learnt, and the first steps, of which one loads the model
_TIMES = ", one run every {:,.0f} s, at most {:,.0f} s left"

Engine = Callable[[Path, Path, Callable[[], None]], None]
"""Answers a request: its file, the file of the answer, and what to call now and then meanwhile."""


def run_engine(request: Path, answer: Path, tick: Callable[[], None]) -> None:
    """Replay a request in a process of its own, because commands import no torch.

    Raises:
        ProfilerError: It failed.
    """
    words = [sys.executable, *safe_path_flags(), "-m", ENGINE, str(request), str(answer)]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    errors = request.with_name("errors.txt")
    # It ends when its input does, also where this process is killed: two would write to one answer.
    with errors.open("wb") as said, subprocess.Popen(words, stdin=PIPE, stdout=said, stderr=said, env=env) as process:
        try:
            while process.poll() is None:
                time.sleep(_POLL_S)
                tick()
        finally:
            if process.poll() is None:
                process.terminate()
    if process.returncode:
        lines = errors.read_text(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"]
        raise ProfilerError(f"The forecast ended early: {shortened(lines[-1], 500)} ({errors} has all of it).")


@as_command("forecast", when_interrupted="The same command goes on.")
def main(
    argv: Sequence[str] | None = None,
    *,
    load_model: ModelConfigLoader = load_model_config,
    engine: Engine = run_engine,
) -> int:
    """Print the forecast for `argv` (without the program) and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    command = read_command(words)
    if command.wants_help:
        print_text(usage())
        return EXIT_OK
    if command.is_log_alone:
        return _print_log(command)
    job = _job(command, load_model)
    for line in filter(None, (job.inputs.ignored, job.inputs.open_sizes)):
        print_error(line)
    forecast, folder = _forecast(command, job, engine)
    print_text(forecast_json(forecast) if command.is_json else forecast_text(forecast, folder))
    return EXIT_ANSWER_IS_NO if command.options.fail_if is not None and forecast.dies else EXIT_OK


def _print_log(command: Command) -> int:
    """Print what a log says by itself, and return the exit code."""
    log, limit = training_log(command.options), limit_of_card(command)
    assert log is not None
    print_text(json_text(log_object(log, limit)) if command.is_json else log_text(log, limit))
    return EXIT_OK


# ---- the job ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Job:
    """What a command describes, before anything runs."""

    spec: TrialSpec
    inputs: Inputs
    architecture_of: ArchitectureLookup
    model_config: Mapping[str, object]
    lengths: LengthInputs
    log: TrainingLog | None
    steps: int

    def draws(self, change: Lever, seeds: int) -> tuple[Sampled, ...]:
        """Return the lengths of all seeds for a trial."""
        spec, plan = change.spec, change.evaluation
        counts = RowCounts.of(spec, self.steps, spec.num_processes)
        found = (sampled(change.lengths, counts, seed) for seed in range(seeds))
        if plan is None:
            return tuple(found)
        return tuple(
            replace(each, draw=replace(each.draw, evaluations=plan.of(spec, seed))) for seed, each in enumerate(found)
        )


def _job(command: Command, load_model: ModelConfigLoader) -> _Job:
    """Return the job.

    Raises:
        UsageError: With every fault of the command line and its files, or there is no forecast of such a job.
    """
    files = job_files(command.rest)
    faults = list(command.faults)
    if files.verl is not None:
        problem = "is a configuration of verl, for which there is only an estimate"
        hint = "Name the job by keys: model=NAME tuning=lora num_generations=8."
        fault = Fault(key="config", found=", ".join(command.rest.configs), problem=problem, hint=hint)
        raise UsageError([*faults, fault])
    try:
        log = training_log(command.options)
    except UsageError as error:
        raise UsageError([*faults, *error.faults]) from error
    planned = log.planned_steps if log is not None else None
    rest = replace(command.rest, keys={STEPS: planned or DEFAULT_STEPS, **command.rest.keys})
    architecture_of = architecture_lookup(load_model)
    read = read_inputs(rest, files.part, with_evaluations=True)
    if log is not None and read.keys.get("model") is None and not faults:
        problem, hint = "says how long rows were, and not what is trained", "Add config=FILE or model=NAME."
        raise UsageError([Fault(key=LOG, found=str(command.options.log), problem=problem, hint=hint)])
    if faults or read.faults:
        raise UsageError(tuple(dict.fromkeys((*faults, *read.faults))))
    inputs, architecture_of = with_reward_models(read, architecture_of)
    if inputs.faults:
        raise UsageError(inputs.faults)
    spec = with_forecast(dearest_spec(inputs, {}, architecture_of))
    refuse_without_card(spec)
    if reason := why_not_simulated([spec], architecture_of, known=["num_processes"]):
        problem = f"has no forecast: {reason[:1].lower()}{reason[1:].rstrip('.')}"
        raise UsageError([Fault(key="model", found=spec.model, problem=problem)])
    lengths = length_inputs(command.options, files.part, log, spec, architecture_of(spec.model))
    plan = lengths.evaluation
    evaluated = 0 if plan is None else plan.rows_generated(spec.steps)
    rows = (RowCounts.of(spec, spec.steps, spec.num_processes).rows + evaluated) * command.options.seeds
    if rows > _MOST_SAMPLED:
        problem = f"gives {rows:,} rows with {command.options.seeds} seeds, and at most {_MOST_SAMPLED:,} are sampled"
        raise UsageError([Fault(key=STEPS, found=str(spec.steps), problem=problem)])
    builtin = find_builtin(spec.model)
    return _Job(
        spec=spec,
        inputs=inputs,
        architecture_of=architecture_of,
        model_config=builtin.config if builtin is not None else load_model(spec.model),
        lengths=lengths,
        log=log,
        steps=spec.steps,
    )


def _forecast(command: Command, job: _Job, engine: Engine) -> tuple[Forecast, Path]:
    """Return the forecast after writing its files, and their folder."""
    options, spec = command.options, job.spec
    root = Path(options.results_dir) / "forecast"
    lengths, plan = job.lengths.lengths, job.lengths.evaluation
    change = Lever(name="nothing", spec=spec, lengths=lengths, evaluation=plan)
    draws = job.draws(change, options.seeds)
    settings = (spec.alloc_conf, *(settings_levers(spec) if options.levers else ()))
    request = _request(job, change, draws, settings)
    folder = root / _name(request)
    answer = _answered(request, folder, engine)
    own = _outlook(answer, request, spec.alloc_conf)
    levers = [LeverForecast(name=conf, outlook=_outlook(answer, request, conf)) for conf in settings[1:]]
    for lever in trial_levers(change, job.inputs, job.architecture_of) if options.levers else ():
        other = _request(job, lever, job.draws(lever, options.seeds), (lever.spec.alloc_conf,))
        found = _answered(other, root / _name(other), engine)
        levers.append(LeverForecast(name=lever.name, outlook=_outlook(found, other, lever.spec.alloc_conf)))
    gpu, architecture = gpu_named(str(spec.gpu)), job.architecture_of(spec.model)
    worst = spec if plan is None else plan.estimated(spec)
    forecast = Forecast(
        spec=spec,
        gpu=gpu,
        context_bytes=cuda_context_bytes(gpu.compute_capability),
        outlook=own,
        sampled=draws,
        learnt=answer.learnt,
        estimate=card_verdict(worst, architecture, gpu, replays=True) if has_form(worst, architecture) else None,
        levers=tuple(sorted(levers, key=lambda each: each.outlook.rank)),
        growth=growth_against(job.log, job.lengths.lengths.completions, own),
        notes=(*notes_of_all(job.inputs, [spec], job.architecture_of), *job.lengths.notes, *note_of_processes(spec)),
    )
    _write(folder, forecast, answer.runs)
    return forecast, folder


# ---- asking, and going on --------------------------------------------------------------------------------------------


def _request(job: _Job, change: Lever, draws: Sequence[Sampled], settings: tuple[str, ...]) -> ForecastRequest:
    return ForecastRequest(
        spec=spec_to_mapping(change.spec),
        model_config=job.model_config,
        steps=job.steps,
        settings=settings,
        draws=tuple(own for each in draws for own in each.draw.of_each(change.spec)),
    )


def _name(request: ForecastRequest) -> str:
    """Return the name of a forecast: a hash of its request, and of what else decides its answer."""
    from profiler.storage.records.versioned import installed_versions

    versions = asdict(installed_versions())
    hashed = {"request": request.as_object(), "versions": versions, "simulation": SIMULATION_RESULTS_VERSION}
    return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()[:16]


def _outlook(answer: ForecastAnswer, request: ForecastRequest, conf: str) -> Outlook:
    own = [run for run in answer.runs if run.alloc_conf == conf]
    runs = runs_of_seeds(own, spec_from_mapping(request.spec).num_processes)
    return Outlook(steps=request.steps, alloc_conf=conf, runs=runs)


def _answered(request: ForecastRequest, folder: Path, engine: Engine) -> ForecastAnswer:
    """Return the answer to a request: what its file has already, and the rest by `engine`.

    Raises:
        ProfilerError: The engine failed or left something out.
    """
    from profiler.storage.files.trial_files import wait_for_lock

    with wait_for_lock(folder / "lock", "makes the same forecast"):
        path = folder / ANSWER
        answer = answer_of(_kept_lines(path))
        if answer.open_runs(request):
            write_atomically(folder / REQUEST, json.dumps(request.as_object()).encode())
            engine(folder / REQUEST, path, _Progress(request, path))
            answer = answer_of(_kept_lines(path))
    if missing := answer.open_runs(request):
        raise ProfilerError(f"The forecast ended early: {len(missing)} of its runs are missing in {path}.")
    return answer


def _kept_lines(path: Path) -> list[AnswerLine]:
    """Return the lines of an answer; what a killed process left half written at its end is cut off the file."""
    if not path.exists():
        return []
    content = path.read_bytes()
    found, whole = [], 0
    for line in content.splitlines(keepends=True):
        try:
            if not line.endswith(b"\n"):
                break
            found.append(line_of(json.loads(line)))
        except (ValueError, KeyError, TypeError):
            break
        whole += len(line)
    if whole < len(content):
        write_atomically(path, content[:whole])
    return found


class _Progress:
    """Says how far an answer is, with the time left."""

    def __init__(self, request: ForecastRequest, path: Path) -> None:
        self._all = request.steps * len(request.draws) * len(request.settings)
        self._runs = len(request.draws) * len(request.settings)
        self._path, self._lines, self._known = path, 0, 0
        self._said_s = self._since_s = time.monotonic()

    def __call__(self) -> None:
        """Say it, if it is time."""
        now = time.monotonic()
        if now - self._said_s < _SAY_AFTER_S or not self._path.exists():
            return
        self._said_s = now
        self._lines = self._path.read_bytes().count(b"\n")
        print_error(self._said(now))

    def _said(self, now: float) -> str:
        if not self._lines:
            return f"running the trainer on the simulated card to learn: {now - self._since_s:.0f} s"
        if self._known <= _SLOW_LINES:  # what went before was learning, or is of an earlier command
            self._known, self._since_s = self._lines, now
        rate = (self._lines - self._known) / max(_POLL_S, now - self._since_s)
        steps = max(0, self._lines - 1)  # the first line is no step
        said = f"{steps:,} of at most {self._all:,} steps of {self._runs} runs"
        times = (self._all / self._runs, self._all - steps)
        return said + (_TIMES.format(*(each / rate for each in times)) if rate > 0 else self._why_whole())

    def _why_whole(self) -> str:
        first = line_of(json.loads(self._path.read_bytes().partition(b"\n")[0]))
        return f". {first.whole} Each is simulated." if isinstance(first, Learnt) and first.whole else ""


# ---- files -----------------------------------------------------------------------------------------------------------


def _write(folder: Path, forecast: Forecast, runs: Sequence[ForecastRun]) -> None:
    """Write the table of all steps, the page and its figure.

    Raises:
        StorageError: A file could not be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from profiler.rendering.document import FIGURES
    from profiler.rendering.figures.theme import rendered  # matplotlib takes half a second
    from profiler.rendering.figures.timeline import forecast_figure
    from profiler.rendering.layouts.html import html
    from profiler.rendering.layouts.markdown import markdown

    steps = [each for run in runs for each in run.steps]
    columns = {each.name: [getattr(step, each.name) for step in steps] for each in fields(ForecastStep)}
    columns["phase"] = [step.phase.value for step in steps]
    columns["process"] = [step.seed % forecast.spec.num_processes for step in steps]
    columns["seed"] = [step.seed // forecast.spec.num_processes for step in steps]
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, compression="zstd")
    write_atomically(folder / TABLE, sink.getvalue())
    found = rendered("steps", "Memory of every step of the run", lambda: forecast_figure(forecast))
    figures = []
    if isinstance(found, str):
        print_error(found)
    else:
        figure, files = found
        figures.append(figure)
        for kind, content in files.items():
            write_atomically(folder / FIGURES / f"{figure.name}.{kind}", content)
    page = forecast_page(forecast, figures)
    write_atomically(folder / MARKDOWN, markdown(page).encode())
    write_parts_atomically(folder / PAGE, html(page))
