"""The simulation against the card: each pair of trials, and the acceptance thresholds."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from maintenance.campaign.compared.simulated import grid_folders
from profiler.analysis.errors import Pair, pairs, thresholds
from profiler.domain.memory import gib_text
from profiler.rendering.sweep.words import threshold_text
from profiler.storage.sweep_tables.tables import read_tables, table_path


def threshold_lines(folders: Iterable[Path]) -> Sequence[str]:
    """Return a line per pair of a measured and a simulated trial in all folders, and one per threshold.

    Raises:
        UsageError: A table is damaged, or of another version.
    """
    grids = [grid for folder in folders for grid in grid_folders(folder) if table_path(grid, "runs").exists()]
    found = pairs([read_tables(grid).runs for grid in grids])
    judged = [
        f"{one.claim}: {threshold_text(one, one.found)} (at most {threshold_text(one, one.allowed)})"
        + {True: "", False: ", does not hold", None: ""}[one.holds]
        for one in thresholds(found)
    ]
    return [*map(_pair_line, found), *judged] if found else ["No trial here was both measured and simulated.", *judged]


def _pair_line(pair: Pair) -> str:
    cell, other = pair.measured, pair.simulated
    sides = f"{cell.model}, {cell.label}: {cell.status} measured, {other.status} simulated"
    if pair.differing_versions:
        versions = ", ".join(f"{package} {one} and {two}" for package, one, two in pair.differing_versions)
        return f"{sides}; not counted, because the versions differ: {versions}"
    sizes = (
        ("allocated", cell.peak_allocated_bytes, other.peak_allocated_bytes),
        ("reserved", cell.peak_reserved_bytes, other.peak_reserved_bytes),
        ("device", cell.peak_device_bytes, other.peak_device_bytes),
    )
    shown = [f"{name} {_shown(measured, simulated)}" for name, measured, simulated in sizes]
    return "; ".join((sides, *shown))


def _shown(measured: int | None, simulated: int | None) -> str:
    if not measured or simulated is None:
        return "not known"
    error = (simulated - measured) / measured
    return f"{gib_text(measured, 2)} measured, {gib_text(simulated, 2)} simulated ({error:+.2%})"
