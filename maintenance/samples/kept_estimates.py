"""`python -m maintenance.samples.kept_estimates`: estimate the kept grids again, where a formula has changed.

The estimates of a kept table are replaced, and nothing else: what was simulated, emulated or measured stays as it was.
Then `python -m profiler.report` writes the page and the figures of the grid again.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from maintenance.samples.sampling import architecture_of
from profiler.analytical.estimate import estimate
from profiler.command_line import print_line
from profiler.config.trials.grid import expand, read_grid
from profiler.config.trials.identity import spec_to_mapping
from profiler.config.trials.specification import parse_points
from profiler.domain.trials.trial import WORKLOAD_KEYS, TrialSpec
from profiler.storage.sweep_tables.tables import table_path
from profiler.storage.tables.rows import RUNS
from profiler.sweep.command import read_command
from profiler.sweep.prepared.composition import compose

REFERENCE = Path(__file__).parents[2] / "results" / "reference"

SEVERAL_GRIDS = "claims"
"""A kept folder with the trials of several grids."""

COLUMNS = ("estimated_peak_allocated_bytes", "estimated_peak_reserved_bytes")


@dataclass(frozen=True, kw_only=True)
class KeptEstimate:
    """The estimate of one kept row."""

    place: int
    """Of the row in its table."""
    spec: TrialSpec
    kept: tuple[int, ...]
    """The values of `COLUMNS`."""
    today: tuple[int, ...]


def kept_grids() -> tuple[str, ...]:
    """Return the kept folders that have the table of one grid."""
    return tuple(sorted({path.parent.name for path in REFERENCE.glob("*/runs.parquet")} - {SEVERAL_GRIDS}))


def kept_estimates(grid: str) -> Iterator[KeptEstimate]:
    """Yield the kept estimate and that of today of each trial of a grid that has one."""
    rows = pd.read_parquet(table_path(REFERENCE / grid, RUNS))
    for spec in specs_of(grid):
        places = [place for place in places_of(rows, spec) if rows.loc[place, list(COLUMNS)].notna().all()]
        if not places:
            continue
        found = estimate(spec, architecture_of(spec.model))
        today = (int(found.peak_allocated_bytes), int(found.peak_reserved_bytes or 0))
        for place in places:
            row: Any = rows.loc[place]
            kept = tuple(int(row[name]) for name in COLUMNS)
            yield KeptEstimate(place=place, spec=spec, kept=kept, today=today)


def specs_of(grid: str) -> tuple[TrialSpec, ...]:
    """Return the trials of a grid."""
    command = read_command([f"+grid={grid}", "backend=simulated"])
    points = expand(read_grid(grid, compose(command)), command.axes)
    return parse_points(points, architecture_of=architecture_of)


def places_of(rows: pd.DataFrame, spec: TrialSpec) -> list[int]:
    """Return the rows of a trial: equal in every key in which rows differ; a null says that the key does not count.

    Raises:
        ValueError: Several rows of one backend are.
    """
    values, found = spec_to_mapping(spec), rows
    for key in (*WORKLOAD_KEYS, "gpu"):
        if key in rows and rows[key].nunique(dropna=False) > 1:
            value = values[key]
            wanted = ",".join(value) if isinstance(value, list) else str(value)
            found = found[found[key].isna() | (found[key].map(lambda each: str(each).removesuffix(".0")) == wanted)]
    if found.backend.duplicated().any():
        raise ValueError(f"{len(found)} rows are of {spec}")
    return [int(place) for place in found.index]


def refreshed(table: pa.Table, changed: list[KeptEstimate]) -> pa.Table:
    """Return a table with the estimates of today in the rows of `changed`."""
    for number, name in enumerate(COLUMNS):
        values = table.column(name).to_pylist()
        for each in changed:
            values[each.place] = each.today[number]
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(place), pa.array(values, table.schema.field(place).type))
    return table


def main() -> int:
    """Replace the estimates that are not those of today, and say how to draw their grids again."""
    for grid in kept_grids():
        changed = [each for each in kept_estimates(grid) if each.kept != each.today]
        if not changed:
            continue
        path = table_path(REFERENCE / grid, RUNS)
        pq.write_table(refreshed(pq.read_table(path), changed), path)
        print_line(
            f"{grid}: {len(changed)} estimates. Then: python -m profiler.report results/reference/{grid} figures=png"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
