"""Records and predictions as one row per trial."""

from collections.abc import Mapping, Sequence

import pandas as pd

from maintenance.accuracy.baselines import accelerate_bytes, verl_report_bytes
from maintenance.accuracy.errors import PREDICTORS, REASON, Predictor
from maintenance.samples.sampling import architecture_of
from profiler.analytical.estimate import estimate_with_replay, phase_instants
from profiler.config.trials.identity import spec_to_mapping
from profiler.domain.memory import TRIAL_PHASES
from profiler.domain.runs.outcome import Estimate, Status, TrialRecord, UnlimitedCard
from profiler.domain.runs.readings import CategoryShare


def prediction_frame(records: Sequence[TrialRecord]) -> pd.DataFrame:
    """Return one row per answered trial: its keys, its required memory and each prediction, in bytes."""
    return pd.DataFrame(
        [_row(record, record.outcome.unlimited) for record in records if record.outcome.unlimited is not None]
    )


def _row(record: TrialRecord, simulated: UnlimitedCard) -> Mapping[str, object]:
    spec, outcome = record.spec, record.outcome
    architecture = architecture_of(spec.model)
    found = estimate_with_replay(spec, architecture)
    said = {
        Predictor.ESTIMATE: found.peak_allocated_bytes,
        Predictor.BLOG: found.peak_rule_bytes,
        Predictor.VERL_REPORT: verl_report_bytes(spec),
        Predictor.ACCELERATE: accelerate_bytes(spec),
    }
    keys = {key: ",".join(value) if isinstance(value, list) else value for key, value in spec_to_mapping(spec).items()}
    return {
        "trial_id": record.trial_id,
        "label": record.label,
        "status": outcome.status.value,
        **keys,
        "required_allocated_bytes": simulated.required_allocated_bytes,
        "required_reserved_bytes": simulated.required_reserved_bytes,
        **{PREDICTORS[predictor]: size for predictor, size in said.items()},
        "estimated_reserved_bytes": found.peak_reserved_bytes,
        **_phases(record),
        "estimated_peak_phase": found.peak_phase.value,
        "simulated_peak_phase": outcome.peaks.phase.value if outcome.peaks.phase else None,
        REASON: _largest_difference(found, outcome.breakdown.shares) if outcome.status is Status.OK else "",
    }


def _phases(record: TrialRecord) -> Mapping[str, int | None]:
    """Return allocated memory by phase, simulated and estimated; simulated is None after an out-of-memory error."""
    spec = record.spec
    estimated = phase_instants(spec, architecture_of(spec.model))
    simulated = {peak.phase: peak.peak_allocated_bytes for peak in record.outcome.peaks.phases}
    complete = record.outcome.status is Status.OK
    cells: dict[str, int | None] = {}
    for phase in TRIAL_PHASES:
        instant = estimated.get(phase)
        cells[f"simulated_{phase.value}_bytes"] = simulated.get(phase) if complete else None
        cells[f"estimated_{phase.value}_bytes"] = int(instant.total_bytes) if instant else None
    return cells


def _largest_difference(found: Estimate, simulated: Sequence[CategoryShare]) -> str:
    """Return the category in which the peaks differ most: ``"logits -120 MB"`` if the estimate is lower."""
    ours = {share.category: share.size_bytes for share in found.breakdown}
    theirs = {share.category: share.size_bytes for share in simulated}
    differences = {key: ours.get(key, 0) - theirs.get(key, 0) for key in {*ours, *theirs}}
    if not differences:
        return ""
    category = max(sorted(differences), key=lambda key: abs(differences[key]))
    return f"{category.value} {differences[category] / 1e6:+,.0f} MB"
