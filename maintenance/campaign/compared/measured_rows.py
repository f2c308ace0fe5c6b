"""What a real card measured, next to what was predicted for the same trials, as rows."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from maintenance.campaign.compared.simulated import grid_folders
from profiler.domain.runs.outcome import Status
from profiler.domain.trials.trial import WORKLOAD_KEYS, Backend
from profiler.storage.sweep_tables.tables import read_tables, table_path

METRICS = ("allocated", "reserved", "device")

SIDES = {Backend.CUDA: "measured", Backend.EMULATED: "emulated", Backend.SIMULATED: "simulated"}
"""The origin of a row of the `runs` table."""

_ESTIMATED = {
    "estimated_peak_allocated_bytes": "estimated_allocated_bytes",
    "estimated_peak_reserved_bytes": "estimated_reserved_bytes",
    "estimated_peak_rule_bytes": "rule_allocated_bytes",
}
_OF_THE_MEASUREMENT = ("label", "parameters", "context_bytes", "step_time_s", "gpu_s")
_SHOWN_KEYS = (
    "model", "tuning", "optim", "gradient_checkpointing", "lengths", "rollout", "logprobs", "max_completion_length",
    "per_device_train_batch_size", "steps",
)  # fmt: skip
"""Keys of a trial in which the campaign's trials differ."""

HELD_OUT_MODELS = ("llama-3.2-3b", "qwen3-4b")
HELD_OUT_LENGTHS = (1536,)
"""Values of `max_completion_length`. Both lists: docs/campaign.md, written before the first stage ran."""

CALIBRATION_MODELS = ("qwen2.5-0.5b", "qwen2.5-1.5b")
"""What these show may change an assumption of the sources (docs/campaign.md)."""


def measured_rows(folder: Path) -> pd.DataFrame:
    """Return one row per measured trial of the whole card under `folder`, in the order of the tables.

    Its keys, and the status and peaks in bytes of each side; null where a side has no such trial. A peak of a trial
    that ran out of memory is the highest before the failure.
    """
    grids = [grid for grid in grid_folders(folder) if table_path(grid, "runs").exists()]
    frames = [_rows(str(grid.relative_to(folder)), read_tables(grid).runs) for grid in grids]
    return typed(pd.concat(frames, ignore_index=True))


def typed(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows whose sizes are integers with null, as read from a file or from tables."""
    sizes = [name for name in rows.columns if name.endswith("_bytes")]
    return rows.astype(dict.fromkeys(sizes, "Int64"))


def with_corrected(rows: pd.DataFrame, later: pd.DataFrame) -> pd.DataFrame:
    """Return `rows` with what the simulation said later, in columns that begin with ``corrected``."""
    simulated = [name for name in later.columns if name.startswith("simulated_")]
    place = ["grid", *_SHOWN_KEYS]
    renamed = later[[*place, *simulated]].rename(columns=lambda name: name.replace("simulated_", "corrected_"))
    return typed(rows.merge(renamed, on=place, how="left", validate="one_to_one"))


def held_out(rows: pd.DataFrame) -> pd.Series:
    """Whether a row is held out: it judges, and nothing was changed after it was looked at."""
    return rows.model.isin(HELD_OUT_MODELS) | rows.max_completion_length.isin(HELD_OUT_LENGTHS)


def fits_on(rows: pd.DataFrame, sides: Iterable[str]) -> pd.DataFrame:
    """Return the rows whose trial ends well on each of these sides: only their peaks can be compared."""
    ends_well = [rows[f"{side}_status"] == Status.OK for side in sides]
    return rows[pd.concat(ends_well, axis=1).all(axis=1)]


def _rows(grid: str, runs: pd.DataFrame) -> pd.DataFrame:
    runs = runs.assign(trial=_identities(runs))
    whole_cards = runs[(runs.backend != Backend.CUDA) | runs.gpu.isna()]
    sides = {name: whole_cards[whole_cards.backend == backend] for backend, name in SIDES.items()}
    found = sides["measured"][["trial", *_SHOWN_KEYS, *_OF_THE_MEASUREMENT, *_ESTIMATED]].rename(columns=_ESTIMATED)
    for name, side in sides.items():
        peaks = {f"peak_{metric}_bytes": f"{name}_{metric}_bytes" for metric in METRICS}
        renamed = side[["trial", "status", *peaks]].rename(columns={"status": f"{name}_status", **peaks})
        found = found.merge(renamed.drop_duplicates("trial"), on="trial", how="left")
    labels = found.label.str.replace(
        f", backend={Backend.CUDA.value}", ""
    )  # the tables name it next to the other sides
    return found.drop(columns="trial").assign(grid=grid, label=labels)


def _identities(runs: pd.DataFrame) -> Sequence[str]:
    """Equal for trials that run the same, wherever they run."""
    return [repr([str(value) for value in values]) for values in runs[list(WORKLOAD_KEYS)].itertuples(index=False)]
