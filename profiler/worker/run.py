"""The job of a worker process: run a trial on its backend, and store the record."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.models.builtin_models import find_builtin
from profiler.domain.runs.outcome import Outcome, Status, TrialRecord, UnlimitedCard, Verdict
from profiler.domain.trials.trial import Attention, Backend, PlannedTrial, Rollout, TrialSpec
from profiler.emulation.card import Marks, forget_marks, marks_of_this_process
from profiler.execution import EndOfSweepError, WorkerJob, beat
from profiler.measurement.counters.untouched_cuda import fork_problem
from profiler.measurement.samples.host_usage import peak_pinned_bytes, peak_resident_bytes
from profiler.seams.checked import check_seams, note_on_versions
from profiler.storage.files.trial_files import snapshot_path, write_memory_snapshot
from profiler.storage.foreign.model_config import load_model_config
from profiler.storage.stores.record_store import RecordStore
from profiler.substitutes.options import Replaced
from profiler.worker.cuda.emulated import as_emulated, needs_on_an_unlimited_card, refusal, waiting_process
from profiler.worker.ranks import has_ranks, run_ranks

if TYPE_CHECKING:
    from profiler.worker.cuda.card_decoding import CardDecoding

_REPLACED = Replaced()
"""What took the place of a package; a process runs one trial."""


def run_job(job: WorkerJob) -> None:
    """Run one trial and store its record. If it raises, there is no answer, and the parent writes the record."""
    if has_ranks(job):
        run_ranks(job, run_job)
        return
    spec = job.trial.spec
    try:
        check_seams(spec.backend)
    except UnsupportedTrialError as error:
        if not spec.backend.names_its_card:
            # No answer: a measured trial keeps its name under a later profiler, which may support these versions.
            raise
        refused = Outcome(verdict=Verdict(status=Status.UNSUPPORTED, message=str(error)))
        for trial in (job.trial, *job.siblings):
            _store(job, trial, refused, time.monotonic())
        return
    model_config = _model_config(spec.model)
    if spec.backend is Backend.SIMULATED:
        _run_simulated(job, model_config)
        return
    if spec.backend is Backend.EMULATED and marks_of_this_process() is None:
        raise EndOfSweepError("The workers of backend=emulated have not loaded the emulated driver, so none can run.")
    if spec.backend.reads_counters and (problem := fork_problem()):
        raise EndOfSweepError(problem)
    if spec.backend is Backend.EMULATED:
        _run_emulated(job, model_config)
    else:
        _run_real(job, model_config)


def _run_emulated(job: WorkerJob, model_config: Mapping[str, object]) -> None:
    """Run the trainer on the emulated card, and after an out-of-memory error once more on one without an end.

    If decoding steps cannot be extrapolated, the trial starts again and decodes every token.
    """
    from profiler.simulation.extrapolation.left_out import StepsDifferError

    spec, started = job.trial.spec, time.monotonic()

    def decode_in_full() -> None:
        _run_real(job, model_config)

    def on_an_unlimited_card() -> UnlimitedCard | None:
        return needs_on_an_unlimited_card(spec, model_config, decoding=_decoding(job), beat=_beat_of(job))

    with (
        _attention_package(spec),
        waiting_process(on_an_unlimited_card) as unlimited,
        waiting_process(decode_in_full) as in_full,
    ):
        try:
            outcome = _run_real(job, model_config, decoding=_decoding(job))
        except StepsDifferError:
            in_full.ask()
            record = RecordStore(Path(job.store_folder)).find(job.trial.trial_id)
            if record is None:
                raise
            outcome = record.outcome
        # vLLM takes a part of the card, so that an unlimited card is another trial.
        needed = unlimited.ask() if outcome.status is Status.OOM and not spec.use_vllm else None
    if needed is not None:
        # Added to a stored record: if it fails, the outcome on the card is not lost.
        _store(job, job.trial, replace(outcome, unlimited=needed), started)


@contextmanager
def _attention_package(spec: TrialSpec) -> Iterator[None]:
    """While active, flash-attn can be imported if the trial asks for it: it can only be built with a CUDA toolkit."""
    if spec.attn_implementation is not Attention.FLASH_ATTENTION_2:
        yield
        return
    from profiler.substitutes.unavailable_packages import flash_package

    with flash_package(_REPLACED):
        yield


def _decoding(job: WorkerJob) -> "CardDecoding | None":
    """Return what extrapolates the decoding steps of an emulated trial; None if they all run."""
    from profiler.worker.cuda.card_decoding import MOST_DECODED_IN_FULL, CardDecoding

    spec = job.trial.spec
    generates = spec.recipe.facts.has_rollout and spec.rollout is Rollout.GENERATE and not spec.use_vllm
    is_long = generates and spec.max_completion_length > MOST_DECODED_IN_FULL
    if not is_long or job.options.snapshot:  # a snapshot needs the history for itself
        return None
    return CardDecoding(KNOWN_GPUS[str(spec.gpu)].chip)


def _run_real(job: WorkerJob, model_config: Mapping[str, object], *, decoding: "CardDecoding | None" = None) -> Outcome:
    """Run the trainer on a real or emulated GPU, or on the CPU, and store the record, the samples and the snapshot."""
    from profiler.worker.cuda.real import run_real

    forget_marks()  # those of the imports
    spec, started = job.trial.spec, time.monotonic()
    beat_of_trial = _beat_of(job)
    try:
        measured = run_real(
            spec,
            model_config,
            gpu_uuid=next(iter(job.place.gpu_uuids), None),
            snapshot=job.options.snapshot,
            sample_period_s=job.options.sample_period_s if spec.backend is Backend.CUDA else None,
            decoding=decoding,
            beat=beat_of_trial,
        )
    except (UnsupportedTrialError, RuntimeError) as error:
        refused = refusal(error) if spec.backend is Backend.EMULATED else None
        if refused is None:
            raise
        outcome = _of_backend(refused, spec, started)
        _store(job, job.trial, outcome, started)
        return outcome
    outcome = _of_backend(measured.outcome, spec, started, decoding=decoding)
    # The record comes after the samples, because it marks the trial as done. It comes before the snapshot, which is
    # large and slow to write, and whose absence is noticed by itself.
    folder = Path(job.store_folder)
    if measured.samples:
        from profiler.storage.tables.run_tables import write_samples  # imports pyarrow, which only measured trials need

        write_samples(folder, job.trial.trial_id, measured.samples)
    _store(job, job.trial, outcome, started)
    if measured.snapshot is not None:
        write_memory_snapshot(snapshot_path(folder, job.trial.trial_id), measured.snapshot)
    if job.options.breakdown and spec.backend.reads_counters and outcome.status is Status.OK:
        from profiler.worker.cuda.attributed import breakdown_of

        # Last, and added to a stored record: if it fails, the measurement is not lost.
        with_breakdown = breakdown_of(outcome, spec, model_config, beat=beat_of_trial)
        _store(job, job.trial, _of_backend(with_breakdown, spec, started, decoding=decoding), started)
    return outcome


def _beat_of(job: WorkerJob) -> Callable[[], None]:
    """Return what gives a sign of life."""
    path = job.heartbeat_path
    return (lambda: beat(Path(path))) if path is not None else (lambda: None)


def _of_backend(
    outcome: Outcome, spec: TrialSpec, started: float, *, decoding: "CardDecoding | None" = None
) -> Outcome:
    """Return the outcome with the time on the GPU, or without what an emulated one cannot know."""
    if spec.backend is Backend.EMULATED:
        return as_emulated(
            outcome,
            KNOWN_GPUS[str(spec.gpu)],
            marks=marks_of_this_process() or Marks(),
            steps_extrapolated=decoding.steps_extrapolated if decoding else 0,
            substitutes=_REPLACED.phrases(),
        )
    if spec.backend is Backend.CUDA:
        return replace(outcome, work=replace(outcome.work, gpu_s=time.monotonic() - started))
    return outcome


def _run_simulated(job: WorkerJob, model_config: Mapping[str, object]) -> None:
    """Run the trainer once, and store a record for each card that the run answers: the trial's own and its siblings'.

    A sibling whose card would have chosen other kernels gets no record; it runs by itself.
    """
    from profiler.worker.simulated import card_of, outcome_on_card, simulate, snapshot_on_card, unsupported

    started = time.monotonic()
    trials = (job.trial, *job.siblings)
    try:
        run = simulate(job.trial.spec, model_config, gpus=[card_of(trial.spec) for trial in job.siblings])
    except UnsupportedTrialError as error:
        for trial in trials:
            _store(job, trial, unsupported(trial.spec, error), started)
        return
    for trial in filter(lambda trial: run.answers(trial.spec), trials):
        _store(job, trial, outcome_on_card(run, trial.spec), started)
        if job.options.snapshot:
            path = snapshot_path(Path(job.store_folder), trial.trial_id)
            write_memory_snapshot(path, snapshot_on_card(run, trial.spec))
        # The time of the run counts for the first trial; a sibling takes only the time of its own card.
        started = time.monotonic()


def _model_config(model: str) -> Mapping[str, object]:
    builtin = find_builtin(model)
    return load_model_config(model) if builtin is None else builtin.config


def _store(job: WorkerJob, trial: PlannedTrial, outcome: Outcome, started: float) -> None:
    """Write a trial's record. `started` is its start on the monotonic clock."""
    unavailable = "; ".join(filter(None, (outcome.verdict.unavailable, note_on_versions())))
    verdict = replace(outcome.verdict, unavailable=unavailable)
    work = replace(
        outcome.work,
        wall_s=time.monotonic() - started,
        host_peak_rss_bytes=peak_resident_bytes(),
        host_peak_pinned_bytes=peak_pinned_bytes(),
    )
    RecordStore(Path(job.store_folder)).write(
        TrialRecord.of(trial, versions=job.versions, outcome=replace(outcome, verdict=verdict, work=work))
    )
