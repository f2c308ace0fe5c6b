"""The trials of a sweep with their estimates, before any of them runs."""

from collections.abc import Mapping, Sequence

from profiler.analytical.explanation.cards import Fit, fit_of
from profiler.domain.context import cuda_context_bytes
from profiler.domain.gpu import KNOWN_GPUS
from profiler.domain.outcome import Estimate
from profiler.domain.trial import PlannedTrial, TrialSpec
from profiler.domain.units import gib_text
from profiler.rendering.text_table import text_table

_NUMBERS = ("estimated", "rule")


def plan_table(plan: Sequence[PlannedTrial], estimates: Mapping[str, Estimate], *, knows_ids: bool = True) -> str:
    """Return the trials of `plan` with their estimated peaks, one per line: the output of `dry_run=true`.

    Args:
        plan: The trials.
        estimates: By trial id.
        knows_ids: Whether ids are shown.
    """
    rows = [_row(trial, estimates.get(trial.trial_id), knows_ids=knows_ids) for trial in plan]
    lines = text_table(("trial", "model", "method", *_NUMBERS, "on the card"), rows, numbers=_NUMBERS)
    return "\n".join([*lines, f"{len(plan)} trials, none run (dry_run=true)."])


def _row(trial: PlannedTrial, estimate: Estimate | None, *, knows_ids: bool) -> tuple[str, ...]:
    spec, name = trial.spec, trial.trial_id if knows_ids else "?"
    if estimate is None:
        return (name, spec.model, trial.label, "?", "?", "")
    peak, rule = estimate.peak_allocated_bytes, estimate.peak_rule_bytes
    return (name, spec.model, trial.label, gib_text(peak), gib_text(rule), _verdict(spec, estimate))


def _verdict(spec: TrialSpec, estimate: Estimate) -> str:
    if spec.gpu is None:
        return ""
    gpu, peak = KNOWN_GPUS[spec.gpu], estimate.peak_allocated_bytes
    fit = fit_of(spec, gpu, allocated_bytes=peak, reserved_bytes=estimate.peak_reserved_bytes or peak)
    if fit is not Fit.TOO_LARGE:
        return f"{fit.value}: {gpu.name}"
    missing = peak + cuda_context_bytes(gpu.compute_capability) - gpu.memory_bytes
    return f"{fit.value}: {gib_text(missing)} more than {gpu.name} has"
