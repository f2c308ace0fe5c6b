"""An out-of-memory error of a log, compared with the estimate and the simulation of its job."""

from collections.abc import Sequence

from profiler.advise.refusal import (
    Cause,
    asks_for,
    explained,
    matching,
    nearest_tensor,
    phase_of,
    positions_of_logits,
)
from profiler.advise.simulated import SimulatedRequest, SimulatedTrial
from profiler.allocator.oom_message import OomMessage, OomReport
from profiler.analytical.explanation.cards import Fit
from profiler.analytical.explanation.tensors import named_tensors
from profiler.config.trl_behaviours import LAST_WITH_LOGITS
from profiler.domain.architecture import Architecture
from profiler.domain.trial import Logprobs, TrialSpec
from profiler.domain.units import gib_text
from profiler.rendering.advice_text import Advice
from profiler.rendering.refusal_text import RefusalAnswer

_MOST_REQUESTS = 4
"""Most simulated requests that are named."""

_EXPANDABLE = "export PYTORCH_ALLOC_CONF=expandable_segments:True"


def diagnosis(
    report: OomReport, advice: Advice, architecture: Architecture, trial: SimulatedTrial | None
) -> RefusalAnswer:
    """Return what the first error of a log matches, and what to change.

    Args:
        report: The error.
        advice: The advice for the job on the card of the error.
        architecture: Its model.
        trial: The simulation of the job; None if nothing was simulated.
    """
    message, spec = report.message, advice.spec
    tensors = named_tensors(spec, architecture)
    found, why = matching(message, tensors), explained(message)
    phase = phase_of(report.functions)
    return RefusalAnswer(
        said=_said(report),
        cause=why.cause.value,
        why=why.sentence,
        phase=phase.value if phase is not None else None,
        tensors=found,
        nearest=nearest_tensor(message, tensors),
        reading="" if found else _reading(message, spec, architecture),
        simulated=_simulated_lines(message, trial),
        job=_job(advice),
        change=_change(why.cause, advice),
    )


def _said(report: OomReport) -> str:
    message, phase = report.message, phase_of(report.functions)
    parts = [
        f"{gib_text(size, 2)} {name}"
        for size, name in (
            (message.total_bytes, "in all"),
            (message.allocated_bytes, "allocated"),
            (message.unallocated_bytes, "cached but unused"),
            (message.free_bytes, "free"),
            (message.others_bytes, "of other processes"),
            (message.private_bytes, "in private pools"),
        )
        if size is not None
    ]
    where = f" in {phase} (by its traceback)" if phase is not None else ""
    more = f" It is the first of {report.count} such errors." if report.count > 1 else ""
    return f"The card refused {message.requested_text}{where}: {', '.join(parts)}.{more}"


def _reading(message: OomMessage, spec: TrialSpec, architecture: Architecture) -> str:
    """Return how many positions logits of the size of the request would have; empty if they are no logits."""
    rows = spec.per_device_train_batch_size
    positions = positions_of_logits(message, rows=rows, vocabulary=architecture.vocab_size)
    if positions is None:
        return ""
    shape = f"[{rows}, {positions}, {architecture.vocab_size}]"
    return f"It is the size of float32 logits of every position, {shape}: rows of about {positions} tokens."


def _simulated_lines(message: OomMessage, trial: SimulatedTrial | None) -> tuple[str, ...]:
    if trial is None:
        return ()
    if trial.problem:
        return (f"The job could not be simulated: {trial.problem}.",)
    found = [request for request in trial.requests if asks_for(request.size_bytes, message)]
    if not found:
        lines = ["Simulation: nothing asks for that size."]
    else:
        known = message.allocated_bytes
        ordered = found if known is None else sorted(found, key=lambda each: abs(each.allocated_bytes - known))
        lines = [f"Simulation: {_request_text(request)}." for request in _distinct(ordered)]
    refused = trial.refused_in
    if refused is not None and trial.refused_bytes is not None:
        lines.append(f"The simulated card refuses {gib_text(trial.refused_bytes, 2)} in {refused}.")
    elif trial.needed_bytes is not None:
        lines.append(f"The simulated job fits, with {gib_text(trial.needed_bytes, 2)} at least.")
    return tuple(lines)


def _distinct(requests: Sequence[SimulatedRequest]) -> Sequence[SimulatedRequest]:
    """Return the first requests, one per phase and operation."""
    found: dict[tuple[str, str], SimulatedRequest] = {}
    for request in requests:
        found.setdefault((request.phase, request.operation), request)
    return list(found.values())[:_MOST_REQUESTS]


def _request_text(request: SimulatedRequest) -> str:
    shape = f"[{', '.join(map(str, request.shape))}] {request.dtype}".rstrip()
    of = f" of {request.module}" if request.module.strip(": ") else ""
    allocated = gib_text(request.allocated_bytes, 2)
    return f"{request.operation}{of} asks for {shape} in {request.phase}, with {allocated} allocated"


def _job(advice: Advice) -> str:
    card = advice.card
    needs = f"{gib_text(card.least_bytes)} to {gib_text(card.needed_bytes)}"
    whole = f"{gib_text(card.gpu.memory_bytes)} of {card.gpu.name}"
    verdict = {
        Fit.FITS: "so it fits, and the job that ran needed more than its configuration says",
        Fit.TIGHT: "so it is tight",
        Fit.TOO_LARGE: "so it does not fit, whatever the fragments",
        Fit.NO_ENGINE: "and vLLM does not start there",
        Fit.NO_KERNEL: "and one of its kernels does not run there",
    }[card.fit]
    return f"The whole job needs {needs} of the {whole} by the estimate, {verdict}."


def _change(cause: Cause, advice: Advice) -> tuple[str, ...]:
    fits, is_small = advice.card.fit is not Fit.TOO_LARGE, "expandable_segments" in advice.spec.alloc_conf
    if cause is Cause.OTHERS:
        return ("What to change: end the other processes on the card.",)
    if cause is Cause.FRAGMENTS and not is_small:
        tail = "." if fits else ", which serves this request; the job needs the changes below as well."
        return (f"What to change: {_EXPANDABLE}{tail}",)
    if advice.spec.logprobs is Logprobs.FUSED and fits and cause is not Cause.UNKNOWN:
        return (
            f"What to change: check the prompt lengths and the version of trl: up to {LAST_WITH_LOGITS} "
            "log-probabilities need logits of all completions (logprobs=full in the estimate).",
        )
    return ("What to change is below.",) if advice.steps else ()
