"""Comparison of trials in a folder: the two rollouts, and the cost of sampling the driver."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from profiler.domain.runs.outcome import Outcome, TrialRecord
from profiler.domain.trials.trial import Rollout, TrialSpec
from profiler.storage.stores.record_store import RecordStore


def rollout_lines(records: Iterable[TrialRecord]) -> tuple[str, ...]:
    """Return a paragraph per trial that was run with both rollouts: peaks, and phases that differ."""
    by_rollout: dict[TrialSpec, dict[Rollout, TrialRecord]] = {}
    for record in records:
        same = replace(record.spec, rollout=Rollout.GENERATE)
        by_rollout.setdefault(same, {})[record.spec.rollout] = record
    lines: list[str] = []
    for spec, found in by_rollout.items():
        if len(found) == 2:
            generated, synthetic = found[Rollout.GENERATE].outcome, found[Rollout.SYNTHETIC].outcome
            name = f"{spec.model}, {spec.tuning}, lengths {spec.lengths}"
            lines += _pair(name, generated, synthetic)
    return tuple(lines) or ("No trial here was run with both rollouts.",)


def _pair(name: str, generated: Outcome, synthetic: Outcome) -> list[str]:
    lines = [f"{name}: generated ended as {generated.status}, synthetic as {synthetic.status}."]
    for metric in ("allocated", "reserved", "device"):
        one = getattr(generated.peaks, f"{metric}_bytes")
        other = getattr(synthetic.peaks, f"{metric}_bytes")
        lines.append(f"  peak {metric}: {_shown(one)} generated, {_shown(other)} synthetic, {_change(one, other)}")
    phases = {peak.phase: peak.peak_allocated_bytes for peak in synthetic.peaks.phases}
    for peak in generated.peaks.phases:
        one, other = peak.peak_allocated_bytes, phases.get(peak.phase)
        if one != other:
            lines.append(
                f"  in {peak.phase}: {_shown(one)} generated, {_shown(other)} synthetic, {_change(one, other)}"
            )
    return lines


def _shown(size_bytes: int | None) -> str:
    return "not known" if size_bytes is None else f"{size_bytes} bytes"


def _change(one: int | None, other: int | None) -> str:
    if one is None or other is None:
        return "not comparable"
    return "equal" if one == other else f"{other - one:+d} bytes ({(other - one) / max(1, one):+.3%})"


@dataclass(frozen=True, kw_only=True)
class SampledTimes:
    """Step times of trials with the same sampling period."""

    sample_period_s: float | None
    step_times_s: Sequence[float]


def sampled_times(folder: Path) -> SampledTimes | None:
    """Return the step times of a grid's folder; None if there are none."""
    outcomes = [record.outcome for record in RecordStore(folder).read_all()]
    times = tuple(outcome.work.step_time_s for outcome in outcomes if outcome.work.step_time_s is not None)
    if not times:
        return None
    measured = outcomes[0].measured
    return SampledTimes(sample_period_s=measured.sample_period_s if measured else None, step_times_s=times)


def looking_lines(found: Iterable[SampledTimes]) -> tuple[str, ...]:
    """A line for each period."""
    return tuple(_looking_line(one) for one in found) or ("No trial here ended well.",)


def _looking_line(one: SampledTimes) -> str:
    times = one.step_times_s
    period = "no samples" if one.sample_period_s is None else f"a sample every {one.sample_period_s} s"
    spread = f"{min(times):.3f} to {max(times):.3f} s in {len(times)} trials"
    return f"{period}: step time {mean(times):.3f} s, {spread}."
