"""Cells of tables with errors of the estimate."""

import numpy as np
import pandas as pd

ERROR_COLUMNS = ("median error", "95th percentile", "lowest", "highest")


def error_cells(errors: "pd.Series[float]") -> tuple[str, ...]:
    """Return the median and the 95th percentile of the sizes of errors, and the lowest and highest error."""
    values = errors.to_numpy(dtype=float)
    sizes = np.abs(values)
    unsigned = (f"{100 * size:.1f} %" for size in (np.median(sizes), np.quantile(sizes, 0.95)))
    return (*unsigned, *(f"{100 * value:+.1f} %" for value in (values.min(), values.max())))
