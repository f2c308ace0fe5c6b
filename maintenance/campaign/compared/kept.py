"""What is kept of a campaign in `results/reference/`: rows, facts of the card, a page and a figure."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from maintenance.campaign.compared.measured_page import CAMPAIGNS, measured_page
from maintenance.campaign.compared.measured_rows import fits_on, measured_rows, typed, with_corrected
from maintenance.campaign.compared.simulated import kept_grids, write_grid
from profiler.domain.errors import Fault, UsageError
from profiler.storage.files.atomic import write_atomically

ROWS, FACTS, PAGE, FIGURE, TABLES = "rows.csv", "facts.jsonl", "README.md", "measured.png", "tables"


def keep(folder: Path, *others: Path) -> list[str]:
    """Write what is kept of the campaign in `folder` to the last of `others`; return the paths.

    One more folder before it has the same trials, simulated after an assumption was corrected.

    Raises:
        StorageError: A file could not be written.
        UsageError: `folder` has no facts, or those of several cards.
    """
    from maintenance.accuracy.errors import measured_figure
    from profiler.rendering.figures.theme import as_png

    *corrected, into = others
    facts, rows = _only_facts(folder), measured_rows(folder)
    for later in corrected:
        rows = with_corrected(rows, measured_rows(later))
    write_atomically(into / ROWS, rows.to_csv(index=False, lineterminator="\n").encode())
    write_atomically(into / FACTS, (json.dumps(facts) + "\n").encode())
    write_atomically(into / PAGE, page_of(into).encode())
    figure = measured_figure(fits_on(rows, ("measured", "simulated")), facts["name"])
    write_atomically(into / FIGURE, as_png(figure))
    for name, records in kept_grids(folder).items():
        write_grid(into / TABLES / name, records)
    return [str(into / name) for name in (ROWS, FACTS, PAGE, FIGURE, TABLES)]


def page_of(kept: Path) -> str:
    """Return the page of kept rows and facts."""
    rows = kept_rows(kept)
    folders = "CAMPAIGN_DIR CORRECTED_DIR" if "corrected_status" in rows else "CAMPAIGN_DIR"
    return measured_page(
        rows,
        kept_facts(kept),
        CAMPAIGNS[kept.name],
        figure=FIGURE,
        command=f"python -m maintenance.campaign keep {folders} results/reference/{kept.name}",
    )


def kept_rows(kept: Path) -> pd.DataFrame:
    """Return the kept rows."""
    return typed(pd.read_csv(kept / ROWS))


def kept_facts(kept: Path) -> Mapping[str, Any]:
    """Return the kept facts of the card."""
    found: Mapping[str, Any] = json.loads((kept / FACTS).read_text())
    return found


def _only_facts(folder: Path) -> Mapping[str, Any]:
    paths = sorted((folder / "facts").glob("*.json"))
    if len(paths) != 1:
        problem = "must hold the facts of one card in facts/"
        raise UsageError([Fault(key="folder", found=f"{folder}, with {len(paths)}", problem=problem)])
    found: Mapping[str, Any] = json.loads(paths[0].read_text())
    return found
