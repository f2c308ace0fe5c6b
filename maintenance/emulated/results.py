"""The files of the comparison: rows, page, and the causes that were found by hand."""

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from maintenance.emulated.differences import differences, of_whole_trials, opposite_ends
from maintenance.emulated.page import comparison_page
from maintenance.emulated.rows import WHOLE, comparison_frame
from maintenance.emulated.running import Pair
from profiler.domain.runs.outcome import Versions
from profiler.storage.files.atomic import write_atomically

ROWS, PAGE, CAUSES = "rows.csv", "report.md", "causes.csv"


def write_results(folder: Path, pairs: Sequence[Pair], *, sampled: int, versions: Versions) -> list[str]:
    """Write the rows and the page of the trials that have ended on both sides; nothing if there are none.

    Returns:
        One sentence per threshold that does not hold, and per trial that ends differently without a known cause.
    """
    frame = comparison_frame(pairs)
    if frame.empty:
        return []
    page = page_of(frame, folder, sampled=sampled, versions=versions_line(versions))
    write_atomically(folder / ROWS, frame.to_csv(index=False, lineterminator="\n").encode())
    write_atomically(folder / PAGE, page.encode())
    beyond = [each.verdict for each in of_whole_trials(differences(frame)) if not each.is_within]
    return beyond + [
        f"Trial {each.trial} ends differently: emulated {each.emulated}, simulated {each.simulated}."
        for each in opposite_ends(frame, read_causes(folder))
        if not each.cause
    ]


def page_of(frame: pd.DataFrame, folder: Path, *, sampled: int, versions: str) -> str:
    """Return the page of the rows, with the causes that the folder has."""
    whole = frame[frame.phase == WHOLE]
    ends = Counter(zip(whole.emulated_status, whole.simulated_status, strict=True))
    return comparison_page(
        sampled=sampled,
        ends=dict(ends.most_common()),
        differences=differences(frame),
        opposite=opposite_ends(frame, read_causes(folder)),
        versions=versions,
    )


def versions_line(versions: Versions) -> str:
    """Return the versions of the packages of the emulated side, which those of the simulated side equal."""
    torch = (versions.torch or "").partition("+")[0]
    others = ("trl", "transformers", "peft", "bitsandbytes")
    named = ", ".join(f"{name} {getattr(versions, name)}" for name in others)
    return f"Both sides: torch {torch}, {named}; CUDA {versions.cuda}, emulation {versions.emulation}"


def read_causes(folder: Path) -> Mapping[int, str]:
    """Return why trials end differently, by their number; empty without the file."""
    path = folder / CAUSES
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {int(row["trial"]): row["cause"] for row in csv.DictReader(file)}
