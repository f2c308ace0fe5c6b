"""The kept `report.md` of every sweep is what its kept tables give."""

from pathlib import Path

import pytest

from profiler.analysis.sweep_report import sweep_report
from profiler.rendering.document import RenderedFigure
from profiler.rendering.figures.catalogue import chosen, too_much
from profiler.rendering.layouts.markdown import markdown
from profiler.rendering.sweep.page import SectionFigures, sweep_page
from profiler.rendering.sweep.words import rank_table
from profiler.report import estimated_limits
from profiler.storage.foreign.published import read_published
from profiler.storage.records.record_folder import rank_peaks
from profiler.storage.sweep_tables.tables import read_tables

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
FOLDERS = sorted(path.parent for path in REFERENCE.glob("*/report.md") if (path.parent / "runs.parquet").exists())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_kept_page_is_made_again_as_it_is(folder, monkeypatch):
    # Which figures there are does not depend on the number of points.
    monkeypatch.setattr(estimated_limits, "POINTS", 500)
    report = sweep_report(read_tables(folder), read_published(), grid=folder.name)
    drawings = chosen(report.sections, estimated_limits.estimated_limits)
    figures = [
        SectionFigures(
            figures=[
                RenderedFigure(name=each.name, title=each.title, png=b"", svg=b"", note=each.note, suffixes=("png",))
                for each in own
            ],
            left_out=too_much(part, number=number, shown=len(own)),
        )
        for number, (part, own) in enumerate(zip(report.sections, drawings, strict=True), start=1)
    ]
    ranks = rank_table([(each.record, each.allocated_bytes) for each in rank_peaks(folder)])
    assert markdown(sweep_page(report, figures, ranks=ranks)) == (folder / "report.md").read_text(encoding="utf-8")
