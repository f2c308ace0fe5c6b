"""The page of the comparison: errors of the estimate, of whole trials and of their phases."""

import pandas as pd

from maintenance.pages.error_cells import ERROR_COLUMNS, error_cells
from maintenance.pages.kept_page import kept_page
from profiler.rendering.layouts.markdown import markdown_table

PAGE = "README.md"


def page(rows: pd.DataFrame, *, count: int) -> str:
    """Return the comparison as a page of Markdown.

    Args:
        rows: The rows of the trials that are compared.
        count: The trials of the sample.
    """
    phases = rows[rows["phase"] != "all"]
    groups = [
        ("whole trials", rows[rows["phase"] == "all"]),
        ("all single phases", phases),
        *((str(name), group) for name, group in phases.groupby("phase", sort=False)),
    ]
    table = markdown_table(
        ("peak of", "number", *ERROR_COLUMNS),
        [(name, str(len(group)), *error_cells(group["error"])) for name, group in groups],
    )
    return kept_page(
        "The estimate of vision-language models, and simulated trials",
        f"{rows['trial'].nunique()} of {count} sampled trials are compared. Errors of estimated allocated memory, "
        "relative to the simulation, scratch of kernels included. Nothing here is measured or emulated. The sample was "
        "written down before any trial ran, and no formula was fitted to it.",
        table,
        command="python -m maintenance.vision results_dir=results/reference",
    )
