"""A script on a simulated card."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from profiler.allocator import Trace
from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.runs.other_runs import ScriptJob, ScriptWeights
from profiler.domain.runs.outcome import CardFacts, Outcome, Status, Verdict
from profiler.scripts.plain_scripts import reason_to_run_whole
from profiler.scripts.session import ParameterTotals, ScriptSession
from profiler.simulation.depth.repetitions import LAYERS_RUN, DepthDiffersError
from profiler.simulation.script.few_layers import FewLayers
from profiler.simulation.script.session import SimulatedScript
from profiler.storage.files.trial_files import snapshot_path, write_memory_snapshot
from profiler.training.models.parameter_count import parameter_counts
from profiler.worker.simulated import FEWEST_LAYERS, SimulatedRun, card_of, outcome_on_card, snapshot_on_card

_LAUNCHED = "ACCELERATE_"
"""First letters of environment variables that tell accelerate how to train."""


class AllLayersNeededError(Exception):
    """A script ran with few layers, which are no answer: it has to run once more, in another process."""


def simulated_outcome(job: ScriptJob, run: Callable[[ScriptSession], Outcome]) -> Outcome:
    """Return the outcome of `job` on its card, and write its memory snapshot if it wants one.

    The script runs to its end, or to the end of its steps, on a card without limit; the outcome is that of its own
    card, up to the allocation that fails. A deep model may run with few of its layers.

    Args:
        job: The script and its options.
        run: Runs the script in a session, and returns its outcome without memory.

    Raises:
        AllLayersNeededError: Few layers ran, and it is not proven that all would have done the same.
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
        fewest_layers=FEWEST_LAYERS if _may_run_few(job) else None,
    )
    few = session.few
    try:
        ended = run(session)
    except UnsupportedTrialError as error:
        if few is not None and few.is_shortened:
            raise AllLayersNeededError(few.refusal or str(error)) from error
        raise
    trace, layers_run = session.recorder.finished(), None
    if few is not None and few.is_shortened:
        trace, layers_run = _continued(few, trace, ended), LAYERS_RUN
        totals.parameters, totals.trainable = few.counted(parameter_counts)
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
        layers_run=layers_run,
    )
    if job.snapshot:
        write_memory_snapshot(snapshot_path(Path(job.folder), job.run_id), snapshot_on_card(simulated, spec))
    found = outcome_on_card(simulated, spec)
    # A script that failed later than its card was full would not have come so far.
    verdict = found.verdict if found.verdict.status is Status.OOM else ended.verdict
    return replace(found, verdict=_with_notes(verdict, *session.reads.phrases()))


def _may_run_few(job: ScriptJob) -> bool:
    """Return whether the script may run with few layers, and run twice if they are no answer."""
    spec = job.spec
    is_launched = spec.launcher or any(name.startswith(_LAUNCHED) for name in os.environ)
    if not job.again_file or is_launched or spec.steps is None or spec.weights is not ScriptWeights.RANDOM:
        return False
    return not reason_to_run_whole(Path(spec.script))


def _continued(few: FewLayers, trace: Trace, ended: Outcome) -> Trace:
    """Return the trace of a script with all layers.

    Raises:
        AllLayersNeededError: It is another one.
    """
    if few.refusal or ended.verdict.status is not Status.OK:
        raise AllLayersNeededError(few.refusal or "it ended by an error")
    try:
        return few.continued(trace)
    except DepthDiffersError as error:
        raise AllLayersNeededError(str(error)) from error


def _with_notes(verdict: Verdict, *notes: str) -> Verdict:
    return replace(verdict, unavailable="; ".join(filter(None, (verdict.unavailable, *notes))))
