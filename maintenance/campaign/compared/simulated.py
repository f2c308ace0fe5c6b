"""The last stage: predict the measured trials, simulated or emulated, into the same folders.

A card that was capped is predicted as what ran: the kernels of the whole card, and an allocator with the same limit.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from maintenance.campaign.stages import DOOR, LOOKING
from profiler.analytical import estimate
from profiler.config.models.lookup import builtin_architecture
from profiler.config.trials.identity import labels, relabelled, trial_id
from profiler.domain.cards.card import cuda_context_bytes
from profiler.domain.cards.gpu import KNOWN_GPUS, Gpu
from profiler.domain.errors import UsageError
from profiler.domain.runs.outcome import Status, TrialRecord, Versions
from profiler.domain.trials.trial import Backend, PlannedTrial, TrialSpec
from profiler.storage.foreign.model_config import content_of
from profiler.storage.stores.record_store import RecordStore
from profiler.storage.sweep_tables.tables import write_tables

Simulate = Callable[[Sequence[PlannedTrial], RecordStore, Versions], None]
"""Writes a record of each trial to the store."""


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """Result of the stage."""

    trials: int
    unknown_cards: tuple[str, ...]
    """Cards that neither the simulation nor the emulation knows."""
    left_out: tuple[str, ...]
    """One sentence per record that does not fit the tables."""


def simulate_measured(
    folder: Path, *, versions: Versions, simulate: Simulate, backend: Backend = Backend.SIMULATED
) -> Simulated:
    """Predict every measured trial under `folder`, and rewrite the tables.

    Args:
        folder: The folder of the campaign.
        versions: The versions of the Python that runs the trials, stored in the records.
        simulate: Runs trials that are not stored.
        backend: Simulated or emulated.
    """
    count, unknown, left_out = 0, dict[str, None](), list[str]()
    for grid in grid_folders(folder):
        store = RecordStore(grid)
        specs, unnamed = _predicted_specs(store.read_all(), backend)
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


def _predicted_specs(records: Iterable[TrialRecord], backend: Backend) -> tuple[list[TrialSpec], list[str]]:
    """Return the specifications to run, without duplicates, and the cards that are unknown."""
    specs: dict[TrialSpec, None] = {}
    unknown: list[str] = []
    for record in records:
        card = record.outcome.card.name
        if record.spec.backend is not Backend.CUDA or card is None or record.outcome.status not in MEASURED:
            continue
        host = host_of(card)
        if host is None:
            unknown.append(card)
        else:
            alloc_conf = predicted_alloc_conf(record.spec.alloc_conf, record.spec.gpu, host, backend)
            specs[replace(record.spec, backend=backend, gpu=host.name, alloc_conf=alloc_conf)] = None
    return list(specs), unknown


MEASURED = (Status.OK, Status.OOM)
"""Statuses of a trial that ran on a card of its own to its end."""


def host_of(title: str) -> Gpu | None:
    """Return the known card of a row's title, which says after the card's own what it was capped to."""
    return next((gpu for gpu in KNOWN_GPUS.values() if title.partition(" capped to ")[0] == gpu.title), None)


def allocator_limit_bytes(cap: str) -> int:
    """Return the most that the allocator takes on a card that is capped to the known card `cap` (`prepare_card`)."""
    gpu = KNOWN_GPUS[cap]
    return gpu.memory_bytes - cuda_context_bytes(gpu.compute_capability)


def predicted_alloc_conf(alloc_conf: str, cap: str | None, host: Gpu, backend: Backend) -> str:
    """Return the allocator's settings of a predicted trial: the limit of a capped card is a share of the whole one.

    torch takes the share of all memory of the card, the simulation of what the context leaves.

    Args:
        alloc_conf: Settings of the measured trial.
        cap: The known card that the host was capped to; None if it was not.
        host: The card that ran.
        backend: Simulated or emulated.
    """
    if cap is None:
        return alloc_conf
    context = cuda_context_bytes(host.compute_capability) if backend is Backend.SIMULATED else 0
    share = f"per_process_memory_fraction:{allocator_limit_bytes(cap) / (host.memory_bytes - context)!r}"
    return f"{alloc_conf},{share}" if alloc_conf else share


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
    return write_grid(grid, store.read_all())


def kept_grids(folder: Path) -> Mapping[str, Sequence[TrialRecord]]:
    """Return the records of each grid of a campaign that ran to their end, by the folder of the grid's tables."""
    grids = {grid.relative_to(folder).parts[0]: RecordStore(grid) for grid in grid_folders(folder)}
    return {
        name: [record for record in store.read_all() if record.outcome.status in MEASURED]
        for name, store in grids.items()
        if name != DOOR
    }


def write_grid(folder: Path, records: Sequence[TrialRecord]) -> tuple[str, ...]:
    """Write tables of records into a folder; return a sentence for each record that they cannot take."""
    if not records:
        return ()
    records = relabelled(records)
    estimates = {
        record.trial_id: estimate(_as_it_ran(record), architecture)
        for record in records
        if (architecture := builtin_architecture(record.spec.model)) is not None
    }
    return write_tables(folder, records, estimates).left_out


def _as_it_ran(record: TrialRecord) -> TrialSpec:
    """Return the specification with the card whose kernels ran: a capped card runs its own."""
    host = host_of(record.outcome.card.name or "")
    return record.spec if host is None or record.spec.gpu is None else replace(record.spec, gpu=host.name)
