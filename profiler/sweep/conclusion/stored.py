"""Stored trials of a sweep's folder: under which names they are, and which of them this machine measured."""

from collections.abc import Sequence
from dataclasses import replace

from profiler.config.trials.identity import trial_id
from profiler.domain.errors import UsageError
from profiler.domain.runs.outcome import TrialRecord, Versions
from profiler.domain.trials.trial import Backend, PlannedTrial, TrialSpec
from profiler.storage.foreign.fingerprint import is_only_a_hub_model
from profiler.sweep.parts import SweepParts
from profiler.sweep.prepared.plan import name_of, of_shard, plan_trials
from profiler.sweep.prepared.preparation import Sweep


def planned(sweep: Sweep) -> list[PlannedTrial]:
    """Return the trials of a sweep, or of its shard, in order."""
    plan = plan_trials(
        sweep.grid.name, sweep.specs, sweep.versions, hardware_of=sweep.hardware_of, files_of=sweep.files_of
    )
    return plan if sweep.options.shard is None else of_shard(plan, sweep.options.shard)


def name_now(sweep: Sweep, spec: TrialSpec, versions: Versions) -> str | None:
    """Return the name that a stored trial would have if it ran now; None if a file that it names is missing."""
    try:
        return name_of(spec, versions, hardware_of=sweep.hardware_of, files_of=sweep.files_of)
    except UsageError:
        return None


def is_of_this_card(sweep: Sweep, record: TrialRecord) -> bool:
    """Return whether a record was measured on the sweep's card, with its driver and its versions.

    The name of the trial shows it.
    """
    if record.spec.backend is not Backend.CUDA:
        return False
    names = [name_now(sweep, record.spec, sweep.versions)]
    if is_only_a_hub_model(record.spec.model, record.spec.dataset):
        names.append(trial_id(record.spec, sweep.versions, hardware=sweep.hardware_of(record.spec)))
    return record.trial_id in names


def under_earlier_names(sweep: Sweep, plan: list[PlannedTrial], parts: SweepParts) -> list[PlannedTrial]:
    """Return the plan, with measured trials of hub models under the names by which they are stored.

    The first versions of this program had no hash of the `config.json` in the name. Such trials are not measured again.
    """
    measured = [trial for trial in plan if trial.spec.backend is Backend.CUDA]
    if not any(is_only_a_hub_model(trial.spec.model, trial.spec.dataset) for trial in measured):
        return plan
    store = parts.open_store(sweep)

    def renamed(trial: PlannedTrial) -> PlannedTrial:
        if trial.spec.backend is not Backend.CUDA or not is_only_a_hub_model(trial.spec.model, trial.spec.dataset):
            return trial
        earlier = trial_id(trial.spec, sweep.versions, hardware=sweep.hardware_of(trial.spec))
        is_stored_so = store.find(trial.trial_id) is None and store.find(earlier) is not None
        return replace(trial, trial_id=earlier) if is_stored_so else trial

    return [renamed(trial) for trial in plan]


def unanswered(plan: Sequence[PlannedTrial], records: Sequence[TrialRecord]) -> int:
    """Return how many trials of `plan` have no answer among `records`."""
    answered = {record.trial_id for record in records if record.outcome.status.answered}
    return len({trial.trial_id for trial in plan} - answered)
