"""A comparison as a tidy frame, for a notebook or a spreadsheet."""

from collections.abc import Iterable

import pandas as pd

from profiler.analysis.compared.comparison import Section


def comparison_frame(sections: Iterable[Section]) -> pd.DataFrame:
    """Return one row per cell: its place, result, estimate and published figure. Null: unknown."""
    columns = {
        "origin": "string",
        "card": "string",
        "method": "string",
        "model": "string",
        "status": "string",
        "result_bytes": "Int64",
        "missing_bytes": "Int64",
        "estimated_bytes": "Int64",
        "estimate_error_ratio": "Float64",
        "published": "string",
    }
    rows = [
        (
            section.setting.origin,
            section.setting.card,
            cell.label,
            cell.model,
            cell.status.value,
            cell.result_bytes,
            cell.missing_bytes,
            cell.estimated_bytes,
            cell.estimate_error_ratio,
            cell.published.printed if cell.published else None,
        )
        for section in sections
        for cell in section.in_order()
    ]
    return pd.DataFrame(rows, columns=list(columns)).astype(columns)
