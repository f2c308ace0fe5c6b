"""The sampled trials as rows: what the simulation found, and the same with the predictions."""

from collections.abc import Mapping, Sequence

import pandas as pd

from maintenance.accuracy.baselines import accelerate_bytes, verl_report_bytes
from maintenance.accuracy.errors import PREDICTORS, REASON, Predictor
from maintenance.samples.sampling import architecture_of
from profiler.analytical.estimate import estimate_with_replay, phase_instants
from profiler.config.trials.identity import spec_to_mapping
from profiler.domain.errors import UsageError
from profiler.domain.memory import TRIAL_PHASES, Category
from profiler.domain.runs.outcome import Estimate, Outcome, Status, TrialRecord
from profiler.domain.trials.trial import TrialSpec

NUMBER, TRIAL_ID, STATUS, MESSAGE, REFUSAL = "number", "trial_id", "status", "message", "refusal"
"""Columns: the place of the trial in the sample, from 0, its id, how its simulation ended and why, and why it has no
estimate."""

FAMILY, ATTENTION_DROPOUT = "model_type", "attention_dropout"
"""Columns with what the model's `config.json` says."""

_REQUIRED = ("required_allocated_bytes", "required_reserved_bytes", "required_unreleasable_bytes")
"""Columns of a card of unlimited memory, by the names of the fields of `UnlimitedCard`."""


def _simulated(phase: str) -> str:
    return f"simulated_{phase}_bytes"


def _category(category: Category) -> str:
    return f"simulated_{category.name.lower()}_at_peak_bytes"


def simulated_frame(records: Mapping[int, TrialRecord]) -> pd.DataFrame:
    """Return one row per simulated trial, by its place in the sample; without its keys and without any prediction.

    Sizes are in bytes. Those by phase and by category are those of a trial that ran to its end on its card.
    """
    frame = pd.DataFrame([_simulated_row(number, record) for number, record in records.items()])
    # Else a column without a value in some rows would be one of floats.
    sizes = [str(name) for name in frame if str(name).endswith("_bytes")]
    return frame.astype(dict.fromkeys(sizes, "Int64"))


def _simulated_row(number: int, record: TrialRecord) -> Mapping[str, object]:
    outcome, unlimited = record.outcome, record.outcome.unlimited
    is_whole = outcome.status is Status.OK
    phases = {peak.phase: peak.peak_allocated_bytes for peak in outcome.peaks.phases} if is_whole else {}
    shares = {each.category: each.size_bytes for each in outcome.breakdown.shares} if is_whole else {}
    return {
        NUMBER: number,
        TRIAL_ID: record.trial_id,
        STATUS: outcome.status.value,
        MESSAGE: "" if outcome.status.answered and unlimited is not None else _cause(outcome),
        **{name: None if unlimited is None else getattr(unlimited, name) for name in _REQUIRED},
        **{_simulated(phase.value): phases.get(phase) for phase in TRIAL_PHASES},
        "simulated_peak_phase": outcome.peaks.phase.value if outcome.peaks.phase else None,
        **{_category(category): shares.get(category) for category in Category},
    }


def _cause(outcome: Outcome) -> str:
    """Return the line of a message that says why, without files of the machine: the first, after a traceback the last.

    By hand, of a traceback with the last line ``"ValueError: x. The full text is in a.stderr."``: ``"ValueError: x."``.
    """
    lines = outcome.message.splitlines() or [""]
    line = lines[-1] if outcome.status is Status.FAILED else lines[0]
    return line.partition(" The full text is in ")[0]


def prediction_frame(specs: Sequence[TrialSpec], simulated: pd.DataFrame) -> pd.DataFrame:
    """Return one row per trial whose memory is simulated: its keys, that memory and each prediction, in bytes.

    A trial without a closed form has the reason in `REFUSAL`, and no estimate.

    Args:
        specs: The sample.
        simulated: Rows of `simulated_frame`.
    """
    known = simulated[simulated["required_allocated_bytes"].notna()]
    rows = known.astype(object).where(known.notna(), None).to_dict(orient="records")
    return pd.DataFrame([_row(specs[row[NUMBER]], {str(key): value for key, value in row.items()}) for row in rows])


def _row(spec: TrialSpec, simulated: Mapping[str, object]) -> Mapping[str, object]:
    keys = {key: ",".join(value) if isinstance(value, list) else value for key, value in spec_to_mapping(spec).items()}
    architecture = architecture_of(spec.model)
    found, refusal = _estimated(spec)
    said = {
        Predictor.ESTIMATE: found.peak_allocated_bytes if found else None,
        Predictor.BLOG: found.peak_rule_bytes if found else None,
        Predictor.VERL_REPORT: verl_report_bytes(spec),
        Predictor.ACCELERATE: accelerate_bytes(spec),
    }
    of_categories = {_category(category) for category in Category}
    return {
        **{key: simulated[key] for key in (NUMBER, TRIAL_ID, STATUS)},
        **keys,
        FAMILY: architecture.model_type,
        ATTENTION_DROPOUT: architecture.attention_dropout,
        **{
            key: value
            for key, value in simulated.items()
            if key not in {NUMBER, TRIAL_ID, STATUS, MESSAGE, *of_categories}
        },
        **{PREDICTORS[predictor]: size for predictor, size in said.items()},
        "estimated_reserved_bytes": found.peak_reserved_bytes if found else None,
        **_estimated_phases(spec, found),
        "estimated_peak_phase": found.peak_phase.value if found else None,
        REASON: _largest_difference(found, simulated) if found and simulated[STATUS] == Status.OK.value else "",
        REFUSAL: refusal,
    }


def _estimated(spec: TrialSpec) -> tuple[Estimate | None, str]:
    """Return the estimate, or why there is none."""
    try:
        return estimate_with_replay(spec, architecture_of(spec.model)), ""
    except UsageError as error:
        return None, error.faults[0].sentence()


def _estimated_phases(spec: TrialSpec, found: Estimate | None) -> Mapping[str, int | None]:
    instants = phase_instants(spec, architecture_of(spec.model)) if found else {}
    return {
        f"estimated_{phase.value}_bytes": int(instants[phase].total_bytes) if phase in instants else None
        for phase in TRIAL_PHASES
    }


def _largest_difference(found: Estimate, simulated: Mapping[str, object]) -> str:
    """Return the category in which the peaks differ most: ``"logits -120 MB"`` if the estimate is lower."""
    ours = {share.category: share.size_bytes for share in found.breakdown}
    theirs = {category: _int(simulated[_category(category)]) for category in Category}
    if not any(theirs.values()):
        return ""
    differences = {category: ours.get(category, 0) - theirs[category] for category in Category}
    category = max(sorted(differences), key=lambda key: abs(differences[key]))
    return f"{category.value} {differences[category] / 1e6:+,.0f} MB"


def _int(value: object) -> int:
    return int(str(value or 0))
