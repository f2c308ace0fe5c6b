"""An emulated trial is marked as such in every table, page and figure, and never counts as measured."""

import io
from dataclasses import replace

import builders
import pandas as pd
import pytest
from rich.console import Console

from profiler.analysis.compared.comparison import compare, comparison_frame
from profiler.analysis.errors import pairs
from profiler.analysis.findings.answers import by_card
from profiler.analysis.times.sweep_time import SweepTally
from profiler.domain.memory import NOT_EMULATED, Origin
from profiler.domain.trials.trial import Backend
from profiler.rendering.live.progress import SweepProgress
from profiler.rendering.sweep.words import card_names, headroom_legend
from profiler.report import main as drawing
from profiler.storage.stores.record_store import RecordStore
from profiler.storage.sweep_tables.tables import read_tables

SPECS = [builders.spec(model=model) for model in ("qwen2.5-0.5b", "qwen2.5-3b")]


@pytest.fixture
def folder(tmp_path):
    """A folder with the same two trials measured, emulated and simulated."""
    on_card = replace(SPECS[0], backend=Backend.CUDA, gpu=None)
    measured = builders.record(on_card, outcome=replace(builders.outcome(SPECS[0]), unlimited=None))
    found = [measured, *map(builders.emulated, SPECS), *builders.records(SPECS)]
    return builders.write_folder(tmp_path / "lora_vs_full", found)


def test_sections_come_in_the_order_of_their_evidence(folder):
    sections = compare(read_tables(folder).runs)
    assert [section.setting.origin for section in sections] == [Origin.MEASURED, Origin.EMULATED, Origin.SIMULATED]
    emulated = sections[1].setting
    assert emulated.versions[-2:] == (("cuda", "13.0"), ("emulation", "1"))
    assert dict(emulated.versions)["torch"] == "2.13.0+cu130"
    assert list(comparison_frame(sections)["origin"]) == ["measured", *["emulated"] * 2, *["simulated"] * 2]


def test_the_simulation_is_not_compared_with_an_emulated_trial_as_if_it_were_measured(folder):
    (pair,) = pairs([read_tables(folder).runs])
    assert pair.measured.setting.origin is Origin.MEASURED


def test_pages_and_terminal_say_emulated_and_what_is_missing(tmp_path):
    folder = builders.write_folder(tmp_path / "lora_vs_full", [builders.emulated(spec) for spec in SPECS])
    sink = io.StringIO()
    drawing.render_folder(folder, console=Console(file=sink, width=300))
    for text in (sink.getvalue(), (folder / "report.md").read_text(), (folder / "report.html").read_text()):
        text = text.replace("&#39;", "'")
        assert "Emulated on NVIDIA H100 80GB HBM3" in text
        assert NOT_EMULATED in text
        assert "easured on" not in text
        assert "imulated on" not in text
    assert (folder / "comparison.csv").read_text().splitlines()[1].startswith("emulated,NVIDIA H100 80GB HBM3,")
    assert not (folder / "shape.parquet").exists()


def test_a_table_of_cards_names_each_origin(tmp_path):
    small = [replace(spec, gpu="t4-16gb") for spec in SPECS]
    found = [*map(builders.emulated, SPECS), *builders.records([*SPECS, *small])]
    table = by_card(compare(builders.tables(tmp_path, found).runs))
    assert card_names(table) == ["t4-16gb, simulated", "h100-80gb, emulated", "h100-80gb, simulated"]
    assert "simulated and emulated" in headroom_legend(table)
    of_one_origin = by_card(compare(builders.tables(tmp_path / "b", builders.records([*SPECS, *small])).runs))
    assert card_names(of_one_origin) == ["t4-16gb", "h100-80gb"]


def test_its_rows_have_its_versions_and_no_time(folder):
    tables = read_tables(folder)
    runs = tables.runs.set_index("backend")
    assert list(runs.loc["emulated", "emulation_version"]) == ["1", "1"]
    assert list(runs.loc["emulated", "cuda_version"]) == ["13.0", "13.0"]
    assert list(runs.loc["emulated", "emulated_values"]) == ["complete", "complete"]
    assert runs.loc["simulated", ["emulation_version", "emulated_values"]].isna().all(axis=None)
    assert len(tables.steps) == 2
    assert tables.steps["time_s"].isna().all()
    assert tables.samples.empty
    pd.testing.assert_frame_equal(read_tables(folder).steps, tables.steps)


def test_its_record_is_read_as_it_was_written(tmp_path):
    record = builders.emulated(SPECS[0])
    RecordStore(tmp_path).write(record)
    assert RecordStore(tmp_path).find(record.trial_id) == record


def test_the_progress_of_a_sweep_says_emulated():
    sink, record = io.StringIO(), builders.emulated(SPECS[0])
    with SweepProgress(SweepTally([builders.planned(record)]), console=Console(file=sink, width=80)) as progress:
        progress.finished(builders.planned(record), record)
    assert "GiB emulated" in sink.getvalue()
