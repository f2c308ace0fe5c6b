"""The kept trials with images: their estimates are those of today, and docs/trust.md says how far off they are."""

from pathlib import Path

import pandas as pd
import pytest

from maintenance.pages.error_cells import error_cells
from maintenance.samples.sampling import SAMPLED, architecture_of, read_sampled
from maintenance.vision.main import NAME, ROWS, sample
from maintenance.vision.page import PAGE, page
from profiler.analytical.estimate import phase_instants

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "results" / "reference" / NAME


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return pd.read_csv(KEPT / ROWS)


@pytest.fixture(scope="module")
def specs():
    return sample()


def test_the_kept_sample_is_that_of_its_seed(specs):
    assert read_sampled((KEPT / SAMPLED).read_text()) == specs


def test_the_estimates_are_those_of_the_table(rows, specs):
    for number, of_trial in rows[rows["phase"] != "all"].groupby("trial"):
        spec = specs[number]
        instants = phase_instants(spec, architecture_of(spec.model))
        found = {phase.value: int(instant.total_bytes) for phase, instant in instants.items()}
        kept = dict(zip(of_trial["phase"], of_trial["estimated_allocated_bytes"], strict=True))
        assert kept == {phase: found.get(phase, 0) for phase in kept}, number
        errors = of_trial["estimated_allocated_bytes"] / of_trial["simulated_allocated_bytes"] - 1
        assert of_trial["error"].to_list() == pytest.approx(errors.to_list())


def test_the_kept_page_is_that_of_the_kept_rows(rows, specs):
    assert page(rows, count=len(specs)) == (KEPT / PAGE).read_text()


def test_the_document_quotes_the_errors(rows, specs):
    median, percentile, lowest, highest = error_cells(rows[rows["phase"] == "all"]["error"])
    worst = max(lowest, highest, key=lambda cell: abs(float(cell.removesuffix(" %"))))
    text = " ".join((ROOT / "docs" / "trust.md").read_text(encoding="utf-8").split())
    assert f"{rows['trial'].nunique()} of {len(specs)}" in text
    assert f"{median} in the median, {percentile} in the 95th percentile, and {worst} at the worst" in text
