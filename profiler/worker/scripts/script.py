"""A script in this process: on a card its memory is counted, and on a simulated one traced."""

import signal
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from profiler.domain.cards.card import cuda_context_bytes
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import EXIT_SIGNAL_BASE, UnsupportedTrialError
from profiler.domain.memory import Phase
from profiler.domain.runs.other_runs import HeldTensors, NamedCard, ScriptEnding, ScriptJob, ScriptRecord
from profiler.domain.runs.outcome import Outcome, Status, Verdict, Work
from profiler.domain.trials.trial import Backend
from profiler.emulation.card import Marks, forget_marks, marks_of_this_process
from profiler.measurement.counters.phase_counters import OutOfMemoryCallback
from profiler.measurement.counters.torch_cuda import LateCuda, TorchCuda
from profiler.measurement.counters.untouched_cuda import compiled_at_first_call
from profiler.measurement.driver.nvml import NoDriver, Nvml
from profiler.measurement.driver.pynvml_driver import PynvmlDriver
from profiler.measurement.samples.host_usage import peak_pinned_bytes, peak_resident_bytes
from profiler.scripts.running import OtherProcesses, Script, ScriptEnd, run_script
from profiler.scripts.session import CountedSession, ParameterTotals, ScriptSession
from profiler.seams.checked import notes_on_untested
from profiler.storage.files.trial_files import snapshot_path, write_memory_snapshot
from profiler.storage.records.record_folder import SCRIPTS, RecordFolder
from profiler.substitutes import SubstituteOptions, substitutes
from profiler.training.models.parameter_count import parameter_counts
from profiler.training.placement import TrainingObserver
from profiler.worker.cuda.emulated import as_emulated
from profiler.worker.cuda.held_tensors import KnownObjects, largest_at_peak, largest_held, names_by_place
from profiler.worker.cuda.measured import SNAPSHOT_ENTRIES, CapError, Instruments, MeasuringTask, measure
from profiler.worker.scripts.script_faults import last_line_in, print_error_of_script, sentence_of

MOST_ENTRIES = 300_000
"""Most allocations and frees that a breakdown looks at; their Python stacks take memory of the host."""


class ScriptCuda(LateCuda):
    """The card of a script. Where an allocation fails, it looks at what is in use before anything is freed."""

    def __init__(self, job: ScriptJob) -> None:
        super().__init__(_card_of(job))
        self._script = Path(job.spec.script)
        self._keeps_names = job.breakdown
        self._session: CountedSession | None = None
        self._names: dict[tuple[int, int], str] = {}
        self.totals = ParameterTotals(count=parameter_counts)
        self.largest_at_failure: tuple[HeldTensors, ...] = ()
        """Empty if no allocation failed; the script may have gone on after one."""
        if not (job.snapshot or job.breakdown):
            self.record_stacks()

    def session(self, observer: TrainingObserver) -> CountedSession:
        """Return the session in which the script runs."""
        self._session = CountedSession(observer=observer, totals=self.totals, before_phase=self._before_phase)
        return self._session

    def when_out_of_memory(self, callback: OutOfMemoryCallback) -> None:
        """Attach an observer that also keeps the largest tensors."""

        def both(requested_bytes: int, free_bytes: int) -> None:
            callback(requested_bytes, free_bytes)
            self.largest_at_failure = largest_held(self.snapshot(), self._known_objects())

        super().when_out_of_memory(both)

    def largest_at_peak(self, snapshot: Mapping[str, Any]) -> tuple[HeldTensors, ...]:
        """Return the largest tensors at the peak of a recorded history."""
        known = self._known_objects()
        return largest_at_peak(snapshot, known, self._names | names_by_place(known))

    def _before_phase(self, phase: Phase) -> None:
        """Keep the names of gradients while there are gradients: the optimizer's phase begins."""
        if self._keeps_names and phase is Phase.OPTIMIZER and self.is_used:
            self._names |= names_by_place(self._known_objects())

    def _known_objects(self) -> KnownObjects:
        models, optimizers = (self._session.models, self._session.optimizers) if self._session else ([], [])
        return KnownObjects(script=self._script, models=_alive(models), optimizers=_alive(optimizers))


def notes_on_history(snapshot: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a history of at most `MOST_ENTRIES` lacks."""
    if len(snapshot["device_traces"][0]) < MOST_ENTRIES:
        return ()
    return (f"tensors from before the last {MOST_ENTRIES:,} allocations and frees, for their names at the peak",)


def _alive(references: Iterable[Any]) -> list[Any]:
    return [found for each in references if (found := each()) is not None]


def _card_of(job: ScriptJob) -> NamedCard:
    if job.card is not None:
        return job.card
    gpu = KNOWN_GPUS[str(job.spec.gpu)]
    return NamedCard(uuid="", name=gpu.title, memory_bytes=gpu.memory_bytes, compute_capability=gpu.compute_capability)


_INTERRUPTED = EXIT_SIGNAL_BASE + signal.SIGINT
"""Exit code of a script that SIGINT ended."""


@dataclass
class ScriptRun:
    """One run of a job's script, and what is learned from it."""

    job: ScriptJob
    started_s: float = field(default_factory=time.monotonic)
    ending: ScriptEnding | None = None
    failed_at: str = ""
    """The line of the script at which an error ended it, with a colon; empty if none did, or if it is unknown."""
    notes: tuple[str, ...] = ()
    """Figures or phases that are missing or uncertain."""
    substitutes: tuple[str, ...] = ()
    largest: tuple[HeldTensors, ...] = ()
    others: OtherProcesses = field(default_factory=OtherProcesses)
    """The processes that the script started."""

    @property
    def path(self) -> Path:
        """The script."""
        return Path(self.job.spec.script)

    def run(self, session: ScriptSession) -> Outcome:
        """Run the script in `session`, and return its outcome without memory.

        An error of the script that says that the card is full is raised, after its traceback is printed; another one
        is an outcome.

        Raises:
            Exception: The card is full.
            UnsupportedTrialError: The session does not support something that the script does.
        """
        spec = self.job.spec
        script = Script(path=self.path, arguments=spec.arguments, steps=spec.steps, note=self._note, others=self.others)
        try:
            end = self._end(script, session)
        except UnsupportedTrialError:
            raise
        except KeyboardInterrupt:
            self.ending = ScriptEnding(exit_code=_INTERRUPTED, by_steps=False)
            return Outcome(verdict=Verdict(status=Status.FAILED, message="the script was interrupted"))
        except Exception as error:
            self.ending = ScriptEnding(exit_code=1, by_steps=False)
            print_error_of_script(error, self.path)
            line = last_line_in(error, self.path)
            self.failed_at = f"At {line}: " if line else ""
            if _is_about_memory(error):
                raise
            message = f"{self.failed_at}{sentence_of(error)}"
            return Outcome(verdict=Verdict(status=Status.FAILED, message=message))
        self.ending = ScriptEnding(exit_code=end.exit_code, by_steps=end.ended_by_steps)
        self.notes = end.unseen
        return self._outcome(end)

    def _end(self, script: Script, session: ScriptSession) -> ScriptEnd:
        spec = self.job.spec
        # Values are made where something is computed with them.
        options = SubstituteOptions(
            weights=spec.weights,
            prompt_tokens=spec.prompt_tokens,
            completion_tokens=spec.completion_tokens,
            with_values=spec.backend is Backend.CUDA,
            script=self.path,
            arguments=spec.arguments,
            # The simulated card has kernels of its own for it; on a real one a package that is missing is an error.
            has_flash_attn=spec.backend is Backend.EMULATED,
        )
        with substitutes(options) as replaced:
            try:
                return run_script(script, session)
            finally:
                self.substitutes = replaced.phrases()

    def _outcome(self, end: ScriptEnd) -> Outcome:
        failed = end.exit_code != 0
        reason = f": {end.reason}" if end.reason else ""
        message = f"the script ended with exit code {end.exit_code}{reason}" if failed else ""
        return Outcome(
            verdict=Verdict(status=Status.FAILED if failed else Status.OK, message=message),
            work=Work(steps_run=end.steps_run, micro_batches_run=end.backwards_run),
        )

    def _note(self, reason: str) -> None:
        if self.job.note_file:
            Path(self.job.note_file).write_text(reason)

    def store(self, outcome: Outcome) -> None:
        """Write the record of the run."""
        outcome = self._with_other_processes(outcome)
        untested = notes_on_untested(sys.modules.keys())
        unavailable = "; ".join(filter(None, (outcome.verdict.unavailable, *self.notes, *untested)))
        work = replace(
            outcome.work,
            wall_s=time.monotonic() - self.started_s,
            host_peak_rss_bytes=peak_resident_bytes(),
            host_peak_pinned_bytes=peak_pinned_bytes(),
        )
        RecordFolder(Path(self.job.folder), SCRIPTS).write(
            ScriptRecord(
                run_id=self.job.run_id,
                spec=self.job.spec,
                script_sha256=self.job.script_sha256,
                substitutes=self.substitutes,
                ending=self.ending,
                largest=self.largest,
                versions=self.job.versions,
                outcome=replace(outcome, verdict=replace(outcome.verdict, unavailable=unavailable), work=work),
            )
        )

    def _with_other_processes(self, outcome: Outcome) -> Outcome:
        """Say of a run that used no card which other processes the script started: they did its work."""
        others = self.others.sentence()
        if outcome.peaks.allocated_bytes or not others or outcome.status not in (Status.OK, Status.FAILED):
            return outcome
        nothing = f"the script put nothing on the card, and {others}"
        if outcome.status is Status.FAILED:
            return replace(outcome, verdict=replace(outcome.verdict, message=f"{outcome.message} ({nothing})"))
        return replace(outcome, verdict=replace(outcome.verdict, status=Status.UNSUPPORTED, message=nothing))


def run_script_job(job: ScriptJob) -> int:
    """Run the script of `job` in this process, store its record, and return the exit code of the process."""
    run = ScriptRun(job)
    try:
        if job.spec.backend is Backend.SIMULATED:
            # It needs libraries that the Python of an emulated script may lack, or have in another version.
            with compiled_at_first_call():
                from profiler.worker.scripts.simulated_script import AllLayersNeededError, simulated_outcome

            try:
                run.store(simulated_outcome(job, run.run))
            except AllLayersNeededError as error:
                Path(job.again_file).write_text(str(error))
        else:
            _run_on_card(run)
    except CapError as error:
        run.store(Outcome(verdict=Verdict(status=Status.FAILED, message=str(error))))
    except UnsupportedTrialError as error:
        run.store(Outcome(verdict=Verdict(status=Status.UNSUPPORTED, message=str(error))))
    return run.ending.exit_code if run.ending else 0


def _run_on_card(run: ScriptRun) -> None:
    """Run the script on a real or emulated card, and store the record and the snapshot."""
    job, emulated = run.job, run.job.spec.backend is Backend.EMULATED
    if emulated:
        forget_marks()
    has_history = job.snapshot or job.breakdown
    cuda = ScriptCuda(job)
    measured = measure(
        MeasuringTask(
            # A card of unlimited memory is not capped.
            gpu=None if emulated and job.card is not None else job.spec.gpu,
            gpu_uuid=None if emulated else cuda.uuid(),
            snapshot=has_history,
            live_name="" if emulated else run.path.name,
            history_entries=MOST_ENTRIES if job.breakdown else SNAPSHOT_ENTRIES,
            started_s=run.started_s,
        ),
        Instruments(
            cuda=cuda,
            nvml=_nvml(emulated),
            assumed_context_bytes=cuda_context_bytes,
            sample_period_s=job.sample_period_s,
        ),
        lambda observer: run.run(cuda.session(observer)),
    )
    outcome = _with_sizes(measured.outcome, cuda.totals)
    if outcome.status is Status.OOM:
        run.largest = cuda.largest_at_failure
        verdict = replace(outcome.verdict, message=run.failed_at + outcome.message)
        outcome = replace(outcome, verdict=verdict)
    if emulated:
        outcome = as_emulated(outcome, KNOWN_GPUS[str(job.spec.gpu)], marks=marks_of_this_process() or Marks())
    if job.breakdown and measured.snapshot is not None and outcome.status is not Status.OOM:
        run.largest = cuda.largest_at_peak(measured.snapshot)
        run.notes = (*run.notes, *notes_on_history(measured.snapshot))
    run.store(outcome)
    if job.snapshot and measured.snapshot is not None:
        write_memory_snapshot(snapshot_path(Path(job.folder), job.run_id), measured.snapshot)


def _nvml(emulated: bool) -> Nvml:
    if emulated:
        return NoDriver("an emulated driver has nothing to report")
    try:
        return PynvmlDriver()
    except ImportError:
        return NoDriver("nvidia-ml-py is not installed in the Python of the script")


def _with_sizes(outcome: Outcome, totals: ParameterTotals) -> Outcome:
    if not totals.parameters and not totals.trainable:
        return outcome
    work = replace(outcome.work, parameters=totals.parameters, trainable_parameters=totals.trainable)
    return replace(outcome, work=work)


def _is_about_memory(error: Exception) -> bool:
    """Return whether the card may be full; `measure` decides."""
    cuda = TorchCuda()
    return cuda.is_out_of_memory(error) or cuda.has_no_handle(error)
