"""The rows of `shape`, of which a trial has hundreds: made column by column instead of row by row."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from profiler.domain.outcome import TrialRecord
from profiler.domain.step_shape import CATEGORIES, PHASES, StepShape

_PHASES, _CATEGORIES = (pa.array([*map(str, words)], pa.string()) for words in (PHASES, CATEGORIES))


def shape_table(records: Sequence[TrialRecord], schema: pa.Schema) -> pa.Table:
    """Return the rows of `records`, in order.

    Args:
        records: The trials; those that were not simulated have no rows.
        schema: The schema of the table.
    """
    known = [(each.trial_id, each.outcome.unlimited.step_shape) for each in records if each.outcome.unlimited]
    shapes = [(name, shape if isinstance(shape, StepShape) else StepShape.of(shape)) for name, shape in known]
    tables = [_rows(trial_id, shape, schema) for trial_id, shape in shapes]
    return pa.concat_tables([schema.empty_table(), *tables]).combine_chunks()


def _rows(trial_id: str, shape: StepShape, schema: pa.Schema) -> pa.Table:
    lengths = np.frombuffer(shape.lengths, dtype=np.uint8)
    columns = {
        "trial_id": pa.repeat(trial_id, len(shape.sizes_bytes)),
        "instant": pa.array(np.repeat(np.arange(1, len(shape) + 1), lengths), pa.int64()),
        "phase": _PHASES.take(pa.array(np.repeat(np.frombuffer(shape.phases, dtype=np.uint8), lengths))),
        "category": _CATEGORIES.take(pa.array(np.frombuffer(shape.categories, dtype=np.uint8))),
        "bytes": pa.array(np.frombuffer(shape.sizes_bytes, dtype=np.int64)),
    }
    return pa.table([columns[name] for name in schema.names], schema=schema)
