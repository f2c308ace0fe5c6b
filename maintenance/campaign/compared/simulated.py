"""The last stage: simulate the measured trials with the installed versions, into the same folders."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from maintenance.campaign.stages import LOOKING
from profiler.analytical import estimate
from profiler.config.models.lookup import builtin_architecture
from profiler.config.trials.identity import labels, relabelled, trial_id
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import UsageError
from profiler.domain.runs.outcome import Status, TrialRecord, Versions
from profiler.domain.trials.trial import Backend, PlannedTrial, TrialSpec
from profiler.storage.foreign.fingerprint import content_of
from profiler.storage.stores.record_store import RecordStore
from profiler.storage.sweep_tables.tables import write_tables

Simulate = Callable[[Sequence[PlannedTrial], RecordStore, Versions], None]
"""Writes a record of each trial to the store."""


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """Result of the stage."""

    trials: int
    unknown_cards: tuple[str, ...]
    """Cards that cannot be simulated."""
    left_out: tuple[str, ...]
    """One sentence per record that does not fit the tables."""


def simulate_measured(folder: Path, *, versions: Versions, simulate: Simulate) -> Simulated:
    """Simulate every measured trial of the whole card under `folder`, and rewrite the tables.

    Args:
        folder: The folder of the campaign.
        versions: The installed versions, stored in the records.
        simulate: Simulates trials that are not stored.
    """
    count, unknown, left_out = 0, dict[str, None](), list[str]()
    for grid in grid_folders(folder):
        store = RecordStore(grid)
        specs, unnamed = _simulated_specs(store.read_all())
        unknown.update(dict.fromkeys(unnamed))
        plan = [
            PlannedTrial(
                trial_id=trial_id(spec, versions, content=_files(spec)), grid=grid.name, label=label, spec=spec
            )
            for spec, label in zip(specs, labels(specs), strict=True)
        ]
        simulate([trial for trial in plan if not _is_answered(store.find(trial.trial_id))], store, versions)
        count += len(plan)
        left_out.extend(_write_tables(grid, store))
    return Simulated(trials=count, unknown_cards=tuple(unknown), left_out=tuple(left_out))


def grid_folders(folder: Path) -> list[Path]:
    """Return every folder of a grid's results under `folder`, except those about the cost of sampling."""
    found = sorted(path.parent for path in folder.rglob("records") if path.is_dir())
    return [grid for grid in found if LOOKING not in grid.relative_to(folder).parts]


def _simulated_specs(records: Iterable[TrialRecord]) -> tuple[list[TrialSpec], list[str]]:
    """Return the specifications to simulate, without duplicates, and the cards that cannot be simulated."""
    names: Mapping[str, str] = {gpu.title: gpu.name for gpu in KNOWN_GPUS.values()}
    specs: dict[TrialSpec, None] = {}
    unknown: list[str] = []
    for record in records:
        card = record.outcome.card.name
        # A capped card runs its own kernels within the memory of a smaller card, which cannot be simulated.
        if record.spec.backend is not Backend.CUDA or record.spec.gpu is not None or card is None:
            continue
        if record.outcome.status not in (Status.OK, Status.OOM):
            continue
        if card in names:
            specs[replace(record.spec, backend=Backend.SIMULATED, gpu=names[card])] = None
        else:
            unknown.append(card)
    return list(specs), unknown


def _is_answered(record: TrialRecord | None) -> bool:
    return record is not None and record.outcome.status.answered


def _files(spec: TrialSpec) -> Mapping[str, str]:
    """Hashes of the files that a trial names; empty where they are not here, so that it cannot run either."""
    try:
        return content_of(spec.model, spec.dataset)
    except UsageError:
        return {}


def _write_tables(grid: Path, store: RecordStore) -> tuple[str, ...]:
    """The tables of a grid; returns a sentence for each record that they cannot take."""
    records = relabelled(store.read_all())
    if not records:
        return ()
    estimates = {
        record.trial_id: estimate(record.spec, architecture)
        for record in records
        if (architecture := builtin_architecture(record.spec.model)) is not None
    }
    return write_tables(grid, records, estimates).left_out
