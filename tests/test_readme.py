"""README and the documents quote the kept results, and the kept results are those of the simulation."""

import io
import re
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from matrix import further
from rich.console import Console

from maintenance.campaign.compared.kept import kept_rows
from maintenance.samples.kept_estimates import COLUMNS, kept_estimates, kept_grids, refreshed, specs_of
from profiler.domain.memory import as_gib
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.trials.trial import TrialSpec
from profiler.estimate.main import answer
from profiler.forecast.command import read_command as read_forecast
from profiler.rendering.document import FigureKind, RenderedFigure
from profiler.rendering.figures.catalogue import Drawing
from profiler.report import estimated_limits
from profiler.report import main as drawing
from profiler.report.main import render_folder
from profiler.storage.foreign.published import read_published
from profiler.storage.sweep_tables.tables import read_tables
from profiler.worker.simulated import run_simulated

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
REFERENCE = ROOT / "results" / "reference"
SIMULATED_AGAIN = ("lora_vs_full", "oxen_2025")
"""Grids whose smallest model the tests simulate again."""
KEPT = (
    *SIMULATED_AGAIN,
    "group_and_length",
    "num_generations",
    "completion_length",
    "optimizer",
    "logprobs",
    "gradient_checkpointing",
    "sft",
)


@dataclass(frozen=True)
class KeptReport:
    """What the report of a kept grid consists of."""

    table: str
    """What it prints in a terminal of 80 columns, without the line that names the page."""
    page: str


def without_picture(_folder: Path, chosen: Drawing, kinds: tuple[FigureKind, ...]) -> RenderedFigure:
    """The place of a figure in a page: drawing it takes nine tenths of the time, and no table shows it."""
    return RenderedFigure(
        name=chosen.name, title=chosen.title, png=b"", svg=b"<svg/>", note=chosen.note, suffixes=tuple(kinds)
    )


@cache
def report_of(grid: str) -> KeptReport:
    """Write the report of a kept grid in a copy of its folder, without pictures and with limits from few points."""
    shown = io.StringIO()
    with tempfile.TemporaryDirectory() as parent, pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimated_limits, "POINTS", 500)
        patch.setattr(drawing, "_draw", without_picture)
        folder = Path(parent) / grid
        folder.mkdir()
        for file in (REFERENCE / grid).glob("*.parquet"):
            (folder / file.name).write_bytes(file.read_bytes())
        render_folder(folder, console=Console(file=shown, width=80, no_color=True), kinds=(FigureKind.PNG,))
        page = (folder / "report.md").read_text()
    lines = [line.rstrip() for line in shown.getvalue().splitlines()]
    return KeptReport(table="\n".join(line for line in lines if not line.startswith("Report:")).strip("\n"), page=page)


def test_the_table_in_the_readme_is_the_one_that_is_printed() -> None:
    shown = README.read_text().split("```text\n")[1].split("\n```")[0]
    assert shown == report_of("lora_vs_full").table


def test_the_readme_has_at_most_500_words() -> None:
    assert len(README.read_text().split()) <= 500


def test_status_commands_and_table_are_in_the_first_40_lines_and_the_estimate_comes_first() -> None:
    lines = README.read_text().splitlines()[:40]
    first = "\n".join(lines)
    assert "Compared with a real card" in first
    assert 0 < first.index("profiler.estimate ") < first.index("make sweep ") < first.index("make test ")
    assert any(line.startswith("LoRA + checkpointing") for line in lines)


def test_the_status_line_is_true() -> None:
    """The kept grids are simulated; what a card measured is in a folder of its own, to which the line leads."""
    backends = {backend for grid in KEPT for backend in read_tables(REFERENCE / grid).runs.backend}
    assert backends == {"simulated"}
    (target,) = re.findall(r"\[Compared with a real card\]\(([^)]+)\)", README.read_text())
    rows = kept_rows((ROOT / target).parent)
    assert (rows.measured_allocated_bytes > 0).all()


def test_the_estimate_in_the_readme_is_the_one_that_is_printed() -> None:
    text = README.read_text()
    command = next(line for line in text.splitlines() if "profiler.estimate " in line).partition("    #")[0]
    printed = answer(command.split("profiler.estimate ")[1].split())
    tensors, card = re.findall(r"([\d.]+) GiB", text.split("here the peak is")[1])[:2]
    assert f"Peak allocated {tensors} GiB" in printed
    assert f"Fits: {card} GiB with fragments and context" in printed


def test_the_forecast_of_the_readme_is_whole():
    (words,) = re.findall(r"python -m profiler\.forecast (.*?)\s+#", README.read_text())
    assert read_forecast(words.split()).faults == ()


def test_the_readme_shows_one_picture() -> None:
    assert README.read_text().count("![") == 1


@pytest.mark.parametrize("grid", KEPT)
def test_kept_pages_come_from_the_kept_tables(grid: str) -> None:
    assert report_of(grid).page == (REFERENCE / grid / "report.md").read_text()


AGAIN = [("lora_vs_full", 0, 4), ("oxen_2025", 0, 4)]
"""Grid, its first method that is simulated again, and the step to the next one."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "again", [*AGAIN, *further(("lora_vs_full", 2, 4))], ids=lambda again: f"{again[0]}-{again[1]}"
)
def test_kept_results_are_those_of_the_simulation(again: tuple[str, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest model, simulated again: the same bytes. Every second method of the first grid, one of the other.

    A change of these bytes raises `SIMULATION_RESULTS_VERSION` and refreshes the kept results.
    """
    grid, first, step = again
    monkeypatch.chdir(ROOT)
    kept = read_tables(REFERENCE / grid).runs
    smallest = [spec for spec in specs_of(grid) if spec.model == "qwen2.5-0.5b"]
    assert len(smallest) >= 4
    for spec in smallest[first::step]:
        outcome = run_simulated(spec, BUILTIN_MODELS[spec.model].config)
        row = kept_row(kept, spec)
        assert outcome.peaks.allocated_bytes == row.peak_allocated_bytes
        assert outcome.unlimited.required_allocated_bytes == row.required_allocated_bytes
        assert outcome.status == row.status


@pytest.mark.parametrize("grid", kept_grids())
def test_kept_estimates_are_those_of_today(grid: str) -> None:
    found = list(kept_estimates(grid))
    assert [each for each in found if each.kept != each.today] == []
    assert len({each.place for each in found}) == len(found) == len(read_tables(REFERENCE / grid).runs)


def test_only_changed_estimates_are_replaced(tmp_path: Path) -> None:
    path = REFERENCE / "sft" / "runs.parquet"
    whole, estimates = pq.read_table(path), list(kept_estimates("sft"))
    reserved = COLUMNS[1]
    stale = [value + 512 if row == 3 else value for row, value in enumerate(whole.column(reserved).to_pylist())]
    place = whole.schema.get_field_index(reserved)
    planted = whole.set_column(place, whole.schema.field(place), pa.array(stale, pa.int64()))
    assert not planted.equals(whole)
    assert refreshed(planted, estimates).equals(whole, check_metadata=True)


def kept_row(kept: pd.DataFrame, spec: TrialSpec) -> pd.Series:
    same = (
        (kept.model == spec.model)
        & (kept.tuning == spec.tuning)
        & (kept.optim == spec.optim)
        & (kept.gradient_checkpointing == spec.gradient_checkpointing)
    )
    assert same.sum() == 1
    return kept[same].iloc[0]


def kept_gib(grid: str, column: str, **keys: object) -> str:
    """Return one kept number as the documents write it."""
    runs = read_tables(REFERENCE / grid).runs
    for key, value in keys.items():
        runs = runs[runs[key] == value]
    assert len(runs) == 1
    return f"{as_gib(int(runs.iloc[0][column])):.1f}"


def text_of(page: str) -> str:
    return " ".join((DOCS / page).read_text().split())


def test_the_page_on_memory_quotes_the_kept_results() -> None:
    text = text_of("explanation/memory.md")
    tables = read_tables(REFERENCE / "lora_vs_full")
    runs = tables.runs[tables.runs.model == "qwen2.5-3b"].set_index("label")
    peaks = {label: f"{as_gib(int(peak)):.1f}" for label, peak in runs.peak_allocated_bytes.items()}
    assert f"At the peak of full fine-tuning, {peaks['full']} GiB" in text
    assert f"with LoRA falls from {peaks['LoRA']} to {peaks['LoRA + checkpointing']} GiB" in text
    shares = tables.breakdown[tables.breakdown.trial_id == runs.trial_id["full"]].set_index("category")["bytes"]
    rows = re.findall(r"\| (\w[\w ]+) \| ([\d.]+) \|", text)
    assert len(rows) == 5
    for name, size in rows:
        category = {"reference model": "reference"}.get(name, name.replace(" ", "_"))
        assert size == f"{as_gib(int(shares[category])):.1f}"
    assert sum(float(size) for _, size in rows) > 0.99 * float(peaks["full"])


def test_surprises_quote_the_kept_results() -> None:
    text = text_of("surprises.md")
    sliced, full = (kept_gib("logprobs", "peak_allocated_bytes", logprobs=way) for way in ("sliced", "full"))
    assert f"`logprobs=sliced` peaks at {sliced} GiB, `logprobs=full` at {full} GiB." in text
    assert float(sliced) > float(full)
    long = {"max_completion_length": 4096, "tuning": "lora"}
    allocated, reserved = (
        kept_gib("completion_length", f"peak_{kind}_bytes", **long) for kind in ("allocated", "reserved")
    )
    assert f"holds at most {allocated} GiB of tensors, but torch's allocator reserves {reserved} GiB." in text
    assert f"torch's own allocator also reserves {reserved} GiB." in text
    group = {"max_completion_length": 4096, "num_generations": 16}
    needed, unlimited = (
        kept_gib("group_and_length", f"required_{kind}_bytes", **group) for kind in ("allocated", "reserved")
    )
    assert f"needs {needed} GiB; on a card without limit the cache would grow to {unlimited} GiB." in text
    small = {"model": "qwen2.5-0.5b", "tuning": "full", "gradient_checkpointing": False}
    plain, eight = (
        kept_gib("lora_vs_full", "peak_allocated_bytes", optim=optim, **small)
        for optim in ("adamw_torch_fused", "adamw_8bit")
    )
    assert f"needs {plain} GiB with `adamw_torch_fused` and {eight} GiB with `adamw_8bit`." in text
    model = BUILTIN_MODELS["qwen2.5-0.5b"]
    embedding = int(model.config["vocab_size"]) * int(model.config["hidden_size"])
    assert 0.25 < embedding / model.parameters < 0.3


def test_the_published_verdicts_come_out_the_same() -> None:
    """Compare fits and out of memory, cell by cell, and docs/trust.md with the result."""
    published = {row.id: row.printed for row in read_published()}
    kept = read_tables(REFERENCE / "oxen_2025").runs
    sizes = {
        "qwen2.5-0.5b": "0.5b",
        "llama-3.2-1b": "1b",
        "llama-3.2-3b": "3b",
        "llama-3.1-8b": "8b",
        "qwen2.5-14b": "14b",
    }
    methods = {
        ("full", "adamw_torch", False): "ft",
        ("full", "adamw_8bit", False): "ft8",
        ("full", "adamw_8bit", True): "ft8gc",
        ("lora", "adamw_torch", False): "lora",
    }
    assert len(kept) == 20
    differ = []
    for row in kept.itertuples():
        method = methods[(row.tuning, row.optim, row.gradient_checkpointing)]
        figure = published[f"oxen-{method}-{sizes[row.model]}"]
        if (row.status == "oom") != (figure == "OOM"):
            differ.append((row.model, row.label))
    assert differ == [("qwen2.5-14b", "LoRA")]
    text = text_of("trust.md")
    assert f"Of its {len(kept)} cells, {len(kept) - len(differ)} have the same verdict here" in text
    cell = {"model": "qwen2.5-14b", "tuning": "lora"}
    allocated, held = (
        kept_gib("oxen_2025", f"required_{kind}_bytes", **cell) for kind in ("allocated", "unreleasable")
    )
    assert f"{allocated} GiB are in tensors, but {held} GiB are in segments" in text
