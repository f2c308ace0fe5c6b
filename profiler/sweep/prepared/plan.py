"""The plan of a sweep: its trials in order, the folder for their results, and what GPUs cost."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from profiler.config.options.run_options import RunOptions
from profiler.config.prices import Price
from profiler.config.trials.identity import labels, specification_hash, trial_id
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import Fault, UsageError
from profiler.domain.machines.engines import Money, Shard
from profiler.domain.runs.outcome import Versions
from profiler.domain.trials.trial import Backend, PlannedTrial, TrialSpec, run_key
from profiler.measurement.driver.visible import VisibleGpus
from profiler.storage.files.atomic import StorageError, remove_abandoned, sync_folder, write_atomically
from profiler.storage.files.trial_files import RECORDS, LockError, take_lock
from profiler.storage.foreign.number_files import PRICES, load_prices, unknown_cards_line
from profiler.storage.stores.record_store import HINT, RESULTS_DIR, not_writable

FilesOf = Callable[[TrialSpec], Mapping[str, str]]
"""Returns the hashes of the files that a trial names."""

HardwareOf = Callable[[TrialSpec], str]
"""Returns the card and the driver that a measured trial runs on."""


def plan_trials(
    grid: str,
    specs: Sequence[TrialSpec],
    versions: Versions,
    *,
    hardware_of: HardwareOf = lambda _: "",
    files_of: FilesOf = lambda _: {},
) -> list[PlannedTrial]:
    """Return `specs` as trials of `grid`, in order; `hardware_of` is part of the identity of a measured trial."""
    return [
        PlannedTrial(
            trial_id=name_of(spec, versions, hardware_of=hardware_of, files_of=files_of),
            grid=grid,
            label=label,
            spec=spec,
        )
        for spec, label in zip(specs, labels(specs), strict=True)
    ]


def of_shard(plan: Sequence[PlannedTrial], shard: Shard) -> list[PlannedTrial]:
    """Return the trials of one shard, in order. Each trial of `plan` is in exactly one shard.

    Trials that one simulated run answers stay together. These groups are sorted by the smallest hash of their
    specifications, and every n-th is of one shard: versions and the order of the plan do not matter, and the numbers of
    groups differ by at most one.
    """
    groups: dict[Hashable, list[PlannedTrial]] = {}
    for trial in plan:
        groups.setdefault(run_key(trial.spec) or trial.spec, []).append(trial)
    in_order = sorted(groups.values(), key=lambda trials: min(specification_hash(trial.spec) for trial in trials))
    own = {trial.trial_id for trials in in_order[shard.number - 1 :: shard.count] for trial in trials}
    return [trial for trial in plan if trial.trial_id in own]


def name_of(spec: TrialSpec, versions: Versions, *, hardware_of: HardwareOf, files_of: FilesOf) -> str:
    """Return the name of a trial on this machine."""
    measured_on = hardware_of(spec) if spec.backend is Backend.CUDA else ""
    return trial_id(spec, versions, hardware=measured_on, content=files_of(spec))


def order_for_pruning(
    plan: Sequence[PlannedTrial], memory_rank: Callable[[TrialSpec], tuple[float, ...]]
) -> list[PlannedTrial]:
    """Return `plan` with its measured trials in order of memory; other trials keep their places.

    A trial that runs out of memory then runs before all trials that it implies, whatever the order of the axes.

    Args:
        plan: The trials.
        memory_rank: Returns numbers that are not larger for a trial that needs at most another's memory.
    """
    measured = [trial for trial in plan if trial.spec.backend is Backend.CUDA]
    ordered = iter(sorted(measured, key=lambda trial: memory_rank(trial.spec)))
    return [next(ordered) if trial.spec.backend is Backend.CUDA else trial for trial in plan]


_CHECK = ".check"
"""File that is written, locked and removed again."""


def make_writable(folder: Path) -> str:
    """Create `folder` and its `records/`, and do in both what a sweep will do: write, rename, synchronise and lock.

    Temporary files of earlier sweeps that were killed are removed.

    Returns:
        A sentence about what its file system lacks, although a sweep can run there; empty if it lacks nothing.

    Raises:
        UsageError: The file system cannot do what a sweep needs.
    """
    records = folder / RECORDS
    try:
        remove_abandoned(folder)
        _write_into(folder, folder)
        _write_into(records, folder)
        lock = take_lock(records / f"{_CHECK}.lock", wait=False)
        if lock is not None:  # otherwise another sweep checks the same folder, so locks work
            lock.release()
        synchronised = sync_folder(records)
    except LockError as error:
        problem = f"trials cannot be locked in {records} ({error.reason})"
        raise UsageError([Fault(key=RESULTS_DIR, found=str(folder.parent), problem=problem, hint=HINT)]) from error
    except OSError as error:
        raise UsageError([not_writable(folder, error.strerror or str(error))]) from error
    if synchronised:
        return ""
    lacks = "its file system cannot synchronise folders, so a power failure can undo the last finished trials"
    return Fault(
        key=RESULTS_DIR,
        found=str(folder.parent),
        problem=lacks,
        hint=f"To avoid that, choose another folder with {RESULTS_DIR}=PATH.",
    ).sentence()


def _write_into(each: Path, folder: Path) -> None:
    """Write a file into `each`, which is `folder` or below it, and remove it."""
    try:
        write_atomically(each / _CHECK, b"checked")
        (each / _CHECK).unlink(missing_ok=True)
    except StorageError as error:
        why = getattr(error.__cause__, "strerror", None) or str(error)
        raise UsageError([not_writable(folder, why if each == folder else f"{each}: {why}")]) from error


@dataclass(frozen=True, kw_only=True)
class GpuPrices:
    """Prices of GPUs per hour."""

    per_hour: float | None = None
    """Of each GPU, whatever card it is."""
    by_card: Mapping[str, Price] = field(default_factory=dict)
    card: str = ""
    """The visible card, by our name; empty if there is none, or if it is not known."""

    def of(self, spec: TrialSpec) -> Money | None:
        """Return what one GPU of a trial costs per hour; None if that is not known, or if it needs none."""
        if spec.backend is not Backend.CUDA:
            return None
        if self.per_hour is not None:
            return Money(amount=self.per_hour)
        # A capped card costs what the real one does.
        price = self.by_card.get(self.card or spec.gpu or "")
        return Money(amount=price.per_hour, currency=price.currency) if price is not None else None

    def of_one(self, specs: Iterable[TrialSpec]) -> Money | None:
        """Return the price of one GPU per hour if it is the same for all trials that need one; None otherwise."""
        found = {price for spec in specs if (price := self.of(spec)) is not None}
        return found.pop() if len(found) == 1 else None


def gpu_prices(options: RunOptions, visible: VisibleGpus) -> tuple[GpuPrices, str]:
    """Return the prices that the options name, and a line about cards of the file that are not known.

    Raises:
        UsageError: The file cannot be read, or has no prices.
    """
    if options.prices is None:
        return GpuPrices(per_hour=options.price_per_hour, card=card_of(visible)), ""
    if options.price_per_hour is not None:
        problem = "says what the GPUs cost, and so does price_per_hour"
        raise UsageError([Fault(key=PRICES, found=str(options.prices), problem=problem, hint="Leave one of them out.")])
    found = load_prices(str(options.prices))
    return GpuPrices(by_card=found.by_card, card=card_of(visible)), unknown_cards_line(found)


def card_of(visible: VisibleGpus) -> str:
    """Return our name of the first visible card; empty if there is none, or if it is not known."""
    first = next(iter(visible.gpus), None)
    if first is None:
        return ""
    return next((gpu.name for gpu in KNOWN_GPUS.values() if gpu.is_called(first.name, first.memory_bytes)), "")
