"""The trials of a sweep with their estimates, and how long they will take, before any of them runs."""

from collections.abc import Mapping, Sequence

from profiler.analysis.times.durations import Likeness
from profiler.analysis.times.sweep_time import HOUR_S, USUAL, Basis, TimedTrials
from profiler.analytical.explanation.explained import Fit, fit_of, needed_of
from profiler.domain.cards.card import outside_torch_bytes
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.machines.engines import Money
from profiler.domain.memory import gib_text
from profiler.domain.runs.outcome import Estimate
from profiler.domain.trials.trial import Backend, PlannedTrial, TrialSpec
from profiler.rendering.document import Column, Document, Table, Text, text_columns
from profiler.rendering.layouts.plain_text import plain_text

_COLUMNS = (
    *text_columns(("trial", "model", "method")),
    *(Column(title=title) for title in ("estimated", "rule")),
    *text_columns(("on the card",)),
)


def plan_table(plan: Sequence[PlannedTrial], estimates: Mapping[str, Estimate], *, knows_ids: bool = True) -> str:
    """Return the trials of `plan` with their estimated peaks, one per line: the output of `dry_run=true`.

    Args:
        plan: The trials.
        estimates: By trial id.
        knows_ids: Whether ids are shown.
    """
    rows = [_row(trial, estimates.get(trial.trial_id), knows_ids=knows_ids) for trial in plan]
    summary = Text(f"{len(plan)} trials, none run (dry_run=true).")
    return plain_text(Document(title="Plan", blocks=[Table(_COLUMNS, rows), summary]))


def time_lines(timed_trials: Sequence[TimedTrials], *, at_once: int | None, timeout_s: float) -> list[str]:
    """Return sentences on how long the trials that will run take, what that costs, and what it rests on.

    Args:
        timed_trials: The trials.
        at_once: How many run at the same time on this machine; None if it has no GPU for them.
        timeout_s: The time limit of one trial.
    """
    return [
        line for timed in timed_trials for line in (_time_line(timed, at_once), f"  {_basis_line(timed, timeout_s)}")
    ]


def _time_line(timed: TimedTrials, at_once: int | None) -> str:
    unit = "GPU-hours" if timed.backend is Backend.CUDA else "CPU-hours"
    trials = f"{timed.trials} {timed.backend.origin or 'CPU'} trial{'s' * (timed.trials != 1)}"
    least, most = (_hours(seconds) for seconds in (timed.least_s, timed.most_s))
    if timed.basis is Basis.BOUNDS:
        span = f"between {least} and {most}" if timed.has_least else f"at most {most}"
        return f"{trials}: {span} {unit}{_cost(timed, timed.least_s if timed.has_least else None, timed.most_s)}."
    here = f", {_wall(timed.expected_s / at_once)} here with {at_once} at a time" if at_once else ""
    cost = _cost(timed, None, timed.expected_s)
    return f"{trials}: about {_hours(timed.expected_s)} {unit} ({least} to {most}){cost}{here}."


def _basis_line(timed: TimedTrials, timeout_s: float) -> str:
    if timed.basis is Basis.EARLIER:
        listed = ", ".join(f"{count} from {likeness}" for likeness in Likeness if (count := timed.likeness[likeness]))
        return f"Times of earlier trials: {listed}. The range is that of the shortest and of the longest of each kind."
    if timed.basis is Basis.USUAL:
        usual = USUAL[timed.backend]
        return (
            f"Nothing like them has run in this results_dir. Of {usual.trials} other trials, on another machine, "
            f"9 in 10 took {usual.short_s:g} to {usual.long_s:g} s on one core, half of them less than "
            f"{usual.median_s:g} s."
        )
    limit = f"at most timeout_s={timeout_s:g} for each trial"
    if not timed.has_least:
        return f"Nothing like them has run in this results_dir: {limit}."
    return (
        "Nothing like them has run in this results_dir: at least what the peak rates of the card allow for the steps "
        f"alone, without start-up, and {limit}. The first trials that end say more."
    )


def _cost(timed: TimedTrials, least_s: float | None, most_s: float) -> str:
    if timed.price is None:
        return ""
    costs = [_money(timed.price, seconds) for seconds in (least_s, most_s) if seconds is not None]
    return f", {' to '.join(map(str, costs))}"


def _money(price: Money, seconds: float) -> Money:
    return Money(amount=price.amount * seconds / HOUR_S, currency=price.currency)


def _hours(seconds: float) -> str:
    hours = seconds / HOUR_S
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.2g}"


def _wall(seconds: float) -> str:
    minutes = seconds / 60
    return f"{seconds:.0f} s" if minutes < 1.5 else f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


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
    fit = fit_of(spec, gpu, needed_of(spec, estimate))
    if fit is not Fit.TOO_LARGE:
        return f"{fit.value}: {gpu.name}"
    missing = peak + outside_torch_bytes(gpu.compute_capability, spec.num_processes) - gpu.memory_bytes
    return f"{fit.value}: {gib_text(missing)} more than {gpu.name} has"
