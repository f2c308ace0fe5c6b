"""A script on a simulated card."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.runs.other_runs import ScriptJob
from profiler.domain.runs.outcome import CardFacts, Outcome, Status, Verdict
from profiler.scripts.session import ParameterTotals, ScriptSession
from profiler.simulation.script.session import SimulatedScript
from profiler.storage.files.trial_files import snapshot_path, write_memory_snapshot
from profiler.training.models.parameter_count import parameter_counts
from profiler.worker.simulated import SimulatedRun, card_of, outcome_on_card, snapshot_on_card


def simulated_outcome(job: ScriptJob, run: Callable[[ScriptSession], Outcome]) -> Outcome:
    """Return the outcome of `job` on its card, and write its memory snapshot if it wants one.

    The script runs to its end, or to the end of its steps, on a card without limit; the outcome is that of its own
    card, up to the allocation that fails.

    Args:
        job: The script and its options.
        run: Runs the script in a session, and returns its outcome without memory.

    Raises:
        UnsupportedTrialError: The simulation does not support something that the script does.
    """
    spec, gpu = job.spec, card_of(job.spec)
    if spec.num_processes > 1:
        raise UnsupportedTrialError(f"{spec.num_processes} processes are not simulated; backend=emulated shows rank 0")
    totals = ParameterTotals(count=parameter_counts)
    session = SimulatedScript(
        gpu,
        alloc_conf=spec.alloc_conf,
        add_model=totals.add_model,
        add_optimizer=totals.add_optimizer,
    )
    ended = run(session)
    trace = session.recorder.finished()
    if not trace.events:
        return replace(
            ended,
            verdict=_with_notes(ended.verdict, "memory of the card: the script put nothing there"),
            card=CardFacts(name=gpu.title, memory_bytes=gpu.memory_bytes),
        )
    simulated = SimulatedRun(
        trace=trace,
        parameters=totals.parameters,
        trainable_parameters=totals.trainable,
        micro_batches_run=ended.work.micro_batches_run or 0,
        steps_run=ended.work.steps_run or 0,
        chips=frozenset({gpu.chip}),
    )
    if job.snapshot:
        write_memory_snapshot(snapshot_path(Path(job.folder), job.run_id), snapshot_on_card(simulated, spec))
    found = outcome_on_card(simulated, spec)
    # A script that failed later than its card was full would not have come so far.
    verdict = found.verdict if found.verdict.status is Status.OOM else ended.verdict
    return replace(found, verdict=_with_notes(verdict, *session.reads.phrases()))


def _with_notes(verdict: Verdict, *notes: str) -> Verdict:
    return replace(verdict, unavailable="; ".join(filter(None, (verdict.unavailable, *notes))))
