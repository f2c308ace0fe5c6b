"""What is kept of a campaign in `results/reference/`: rows, facts of the card, a page and a figure."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from maintenance.campaign.compared.measured_page import measured_page
from maintenance.campaign.compared.measured_rows import fits_on, measured_rows, typed, with_corrected
from profiler.domain.errors import Fault, UsageError
from profiler.storage.files.atomic import write_atomically

ROWS, FACTS, PAGE, FIGURE = "rows.csv", "facts.jsonl", "README.md", "measured.png"


def keep(folder: Path, *others: Path) -> list[str]:
    """Write rows, facts, page and figure of the campaign in `folder` to the last of `others`; return their paths.

    One more folder before it has the same trials, simulated after an assumption was corrected.

    Raises:
        StorageError: A file could not be written.
        UsageError: `folder` has no facts, or those of several cards.
    """
    from profiler.rendering.figures.sweep.parity import measured_figure
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
    return [str(into / name) for name in (ROWS, FACTS, PAGE, FIGURE)]


def page_of(kept: Path) -> str:
    """Return the page of kept rows and facts."""
    return measured_page(
        kept_rows(kept),
        kept_facts(kept),
        figure=FIGURE,
        command=f"python -m maintenance.campaign keep CAMPAIGN_DIR CORRECTED_DIR results/reference/{kept.name}",
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
