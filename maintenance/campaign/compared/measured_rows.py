"""What a real card measured, next to what was predicted for the same trials, as rows."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from maintenance.campaign.compared.simulated import MEASURED, grid_folders, host_of, predicted_alloc_conf
from profiler.analytical.explanation.explained import Fit, fit_of_memory
from profiler.analytical.formulas.sizes.rounding import Needed
from profiler.domain.cards.gpu import KNOWN_GPUS
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
FIRST_KEYS = (
    "model", "tuning", "optim", "gradient_checkpointing", "lengths", "rollout", "logprobs", "max_completion_length",
    "per_device_train_batch_size", "steps",
)  # fmt: skip
"""Keys in which the trials of the first campaign differ."""
_LATER_KEYS: Mapping[str, str | bool | None] = {
    "recipe": "grpo",
    "max_length": None,
    "precompute_ref_log_probs": False,
    "alloc_conf": "",
    "gpu": None,
}
"""Keys in which the trials of a later campaign differ as well, with the value that all trials of the first had."""
_SHOWN_KEYS = (*FIRST_KEYS, *_LATER_KEYS)
"""Keys of a trial in which the campaigns' trials differ; `gpu` is the card that the real one was capped to."""

_OF_OTHER_ROWS = rf", (backend={Backend.CUDA.value}|gpu=none|alloc_conf='')"
"""Parts of a label by which the tables tell a trial from other sides and from other rows."""

HELD_OUT_MODELS = ("llama-3.2-3b", "qwen3-4b")
HELD_OUT_LENGTHS = (1536,)
"""Values of `max_completion_length`. Both lists: docs/campaign.md, written before the first stage ran."""
ONLY_JUDGED = ("sft", "dpo")
"""Recipes, named before any of their trials ran."""

CALIBRATION_MODELS = ("qwen2.5-0.5b", "qwen2.5-1.5b")
"""What these show may change an assumption of the sources (docs/campaign.md)."""


def measured_rows(folder: Path) -> pd.DataFrame:
    """Return one row per measured trial under `folder`, in the order of the tables.

    Its keys, whether the estimate says that it fits, and the status and peaks in bytes of each side; null where a side
    has no such trial. A peak of a trial that ran out of memory is the highest before the failure.
    """
    grids = [grid for grid in grid_folders(folder) if table_path(grid, "runs").exists()]
    frames = [_rows(str(grid.relative_to(folder)), read_tables(grid).runs) for grid in grids]
    return typed(pd.concat(frames, ignore_index=True))


def typed(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with every key, whose sizes are integers with null, as read from a file or from tables."""
    rows = rows.copy()
    for key, value in _LATER_KEYS.items():
        if key not in rows.columns:
            rows[key] = value
    rows["alloc_conf"] = rows.alloc_conf.fillna("")  # as read from a file
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
    only_judges = rows.recipe.isin(ONLY_JUDGED) | rows.max_completion_length.isin(HELD_OUT_LENGTHS)
    return only_judges | rows.model.isin(HELD_OUT_MODELS)


def fits_on(rows: pd.DataFrame, sides: Iterable[str]) -> pd.DataFrame:
    """Return the rows whose trial ends well on each of these sides: only their peaks can be compared."""
    ends_well = [rows[f"{side}_status"] == Status.OK for side in sides]
    return rows[pd.concat(ends_well, axis=1).all(axis=1)]


def fit_of_estimate(row: Mapping[Hashable, Any]) -> Fit:
    """Return whether the estimate of a row of `runs` fits the card that ran it, or that it was capped to."""
    host = host_of(str(row["gpu_name"]))
    card = host if pd.isna(row["gpu"]) else KNOWN_GPUS[str(row["gpu"])]
    assert card is not None
    sizes = (int(row["estimated_peak_allocated_bytes"]), int(row["estimated_peak_reserved_bytes"]))
    return fit_of_memory(card, Needed.within_bounds(*sizes), gpus=1)


def _rows(grid: str, runs: pd.DataFrame) -> pd.DataFrame:
    is_measured = (runs.backend == Backend.CUDA) & runs.status.isin(MEASURED)
    measured = runs[is_measured].reset_index(drop=True)
    found = measured[[*_SHOWN_KEYS, *_OF_THE_MEASUREMENT, *_ESTIMATED]].rename(columns=_ESTIMATED)
    found["estimated_fit"] = [fit_of_estimate(row).value for row in measured.to_dict(orient="records")]
    for backend, name in SIDES.items():
        rows = _on_side(backend, measured, runs)
        found[f"{name}_status"] = [row.get("status") for row in rows]
        for metric in METRICS:
            found[f"{name}_{metric}_bytes"] = [row.get(f"peak_{metric}_bytes") for row in rows]
    labels = found.label.str.replace(_OF_OTHER_ROWS, "", regex=True)
    return found.assign(grid=grid, label=labels)


def _on_side(backend: Backend, measured: pd.DataFrame, runs: pd.DataFrame) -> Sequence[Mapping[Hashable, Any]]:
    """Return the row of each measured trial on one side; empty where that side has no such trial."""
    if backend is Backend.CUDA:
        return measured.to_dict(orient="records")
    side = runs[runs.backend == backend]
    by_trial = dict(zip(_identities(side), side.to_dict(orient="records"), strict=True))
    settings = [_alloc_conf(row, backend) for row in measured.to_dict(orient="records")]
    return [by_trial.get(place, {}) for place in _identities(measured.assign(alloc_conf=settings))]


def _alloc_conf(row: Mapping[Hashable, Any], backend: Backend) -> str:
    """Return the allocator's settings with which a backend predicts a measured trial."""
    host, cap = host_of(str(row["gpu_name"])), None if pd.isna(row["gpu"]) else str(row["gpu"])
    return predicted_alloc_conf(str(row["alloc_conf"]), cap, host, backend) if host else str(row["alloc_conf"])


def _identities(runs: pd.DataFrame) -> Sequence[str]:
    """Equal for trials that run the same, wherever they run."""
    return [repr([str(value) for value in values]) for values in runs[list(WORKLOAD_KEYS)].itertuples(index=False)]
