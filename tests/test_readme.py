"""What README prints is what the kept results say, and the kept results are what the simulation says."""

import io
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from profiler.config.grid import expand, read_grid
from profiler.config.specification import parse_points
from profiler.domain.builtin_models import BUILTIN_MODELS
from profiler.domain.trial import TrialSpec
from profiler.domain.units import as_gib
from profiler.report import render_folder
from profiler.storage.published import read_published
from profiler.storage.tables import read_tables
from profiler.sweep.command import read_command
from profiler.sweep.composition import compose
from profiler.worker.simulated import run_simulated

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
REFERENCE = ROOT / "results" / "reference"
SIMULATED_AGAIN = ("lora_vs_full", "oxen_2025")
"""Grids whose smallest model the tests simulate again."""
KEPT = (
    *SIMULATED_AGAIN,
    "num_generations",
    "completion_length",
    "optimizer",
    "logprobs",
    "gradient_checkpointing",
)


def printed_table(folder: Path) -> str:
    """What the report prints in a terminal of 80 columns, without the line that names the page."""
    shown = io.StringIO()
    render_folder(folder, console=Console(file=shown, width=80, no_color=True))
    lines = [line.rstrip() for line in shown.getvalue().splitlines()]
    return "\n".join(line for line in lines if not line.startswith("Report:")).strip("\n")


def copied(grid: str, tmp_path: Path) -> Path:
    """A copy of kept parquet files: drawing writes beside them."""
    for file in (REFERENCE / grid).glob("*.parquet"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_the_table_in_the_readme_is_the_one_that_is_printed(tmp_path: Path) -> None:
    shown = README.read_text().split("```text\n")[1].split("\n```")[0]
    assert shown == printed_table(copied("lora_vs_full", tmp_path))


def test_commands_and_table_stand_within_the_first_40_lines() -> None:
    first = README.read_text().splitlines()[:40]
    assert "make sweep " in " ".join(first)
    assert "make test " in " ".join(first)
    assert any(line.startswith("LoRA + checkpointing") for line in first)


@pytest.mark.parametrize("grid", KEPT)
def test_kept_pages_are_drawn_from_the_kept_tables(grid: str, tmp_path: Path) -> None:
    folder = tmp_path / grid
    folder.mkdir()
    render_folder(copied(grid, folder), console=None)
    assert (folder / "report.md").read_text() == (REFERENCE / grid / "report.md").read_text()


def specs_of(grid: str) -> tuple[TrialSpec, ...]:
    command = read_command([f"+grid={grid}", "backend=simulated"])
    points = expand(read_grid(grid, compose(command)), command.axes)
    return parse_points(points, architecture_of=architecture)


def architecture(model: str):
    from profiler.config.model_lookup import builtin_architecture

    found = builtin_architecture(model)
    assert found is not None
    return found


@pytest.mark.slow
@pytest.mark.parametrize("grid", SIMULATED_AGAIN)
def test_kept_results_are_those_of_the_simulation(grid: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest model with every method, simulated again: the same bytes.

    Who changes them raises `SIMULATION_RESULTS_VERSION` and refreshes the kept results.
    """
    monkeypatch.chdir(ROOT)
    kept = read_tables(REFERENCE / grid).runs
    smallest = [spec for spec in specs_of(grid) if spec.model == "qwen2.5-0.5b"]
    assert len(smallest) >= 4
    for spec in smallest:
        outcome = run_simulated(spec, BUILTIN_MODELS[spec.model].config)
        row = kept_row(kept, spec)
        assert outcome.peak_allocated_bytes == row.peak_allocated_bytes
        assert outcome.required_allocated_bytes == row.required_allocated_bytes
        assert outcome.status == row.status


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
    """One kept number as README writes it."""
    runs = read_tables(REFERENCE / grid).runs
    for key, value in keys.items():
        runs = runs[runs[key] == value]
    assert len(runs) == 1
    return f"{as_gib(int(runs.iloc[0][column])):.1f}"


def test_what_was_not_expected_is_in_the_kept_results() -> None:
    text = " ".join(README.read_text().split("## What we did not expect")[1].split("## Results")[0].split())
    sliced, full = (kept_gib("logprobs", "peak_allocated_bytes", logprobs=way) for way in ("sliced", "full"))
    assert f"`logprobs=sliced` peaks at {sliced} GiB on 1.5B, `full` at {full}." in text
    assert float(sliced) > float(full)
    long = {"max_completion_length": 4096, "tuning": "lora"}
    allocated, reserved = (
        kept_gib("completion_length", f"peak_{kind}_bytes", **long) for kind in ("allocated", "reserved")
    )
    assert f"holds {allocated} GiB of tensors at most, and torch's cache {reserved} GiB" in text
    small = {"model": "qwen2.5-0.5b", "tuning": "full", "gradient_checkpointing": False}
    plain, eight = (
        kept_gib("lora_vs_full", "peak_allocated_bytes", optim=optim, **small)
        for optim in ("adamw_torch_fused", "adamw_8bit")
    )
    assert f"({plain} to {eight} GiB)" in text
    model = BUILTIN_MODELS["qwen2.5-0.5b"]
    embedding = int(model.config["vocab_size"]) * int(model.config["hidden_size"])
    assert 0.25 < embedding / model.parameters < 0.3


def test_no_environment_of_a_developer_shows_in_what_is_kept() -> None:
    kept = [
        file
        for grid in KEPT
        for file in (REFERENCE / grid).rglob("*")
        if file.suffix in {".md", ".svg"}
    ]
    assert kept
    for file in kept:
        assert str(ROOT) not in file.read_text()
        assert f"{Path.home()}/" not in file.read_text()


def test_the_published_verdicts_come_out_the_same() -> None:
    """README says so of 19 of 20: a published figure where ours fits, OOM where ours does not."""
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
