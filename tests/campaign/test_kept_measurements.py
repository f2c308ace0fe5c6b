"""What is kept of the campaign's real card: the page says what its rows say, and documents quote it."""

from pathlib import Path

import pandas as pd
import pytest

from maintenance.campaign.compared.kept import FIGURE, PAGE, kept_facts, kept_rows, page_of
from maintenance.campaign.compared.measured_page import equal_rows, measured_page
from maintenance.campaign.compared.measured_rows import SIDES as SIDES_OF_ROWS
from maintenance.campaign.compared.measured_rows import fits_on, held_out
from profiler.analysis.errors import error_ratios
from profiler.domain.cards.capabilities import COMPARED_CARDS
from profiler.rendering.sweep.words import percent
from profiler.storage.sweep_tables.tables import read_tables

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "results" / "reference" / "h200"
ROWS, FACTS = kept_rows(KEPT), kept_facts(KEPT)
SIDES = ("emulated", "simulated", "corrected")


def p95(side: str, metric: str) -> float:
    rows = fits_on(ROWS, ("measured", *(one for one in SIDES if one == side)))  # an estimate has no status
    return float(
        pd.Series(error_ratios(rows, f"{side}_{metric}_bytes", f"measured_{metric}_bytes")).abs().quantile(0.95)
    )


def test_the_page_is_that_of_its_rows() -> None:
    assert (KEPT / PAGE).read_text() == page_of(KEPT)


def test_the_tables_hold_the_rows() -> None:
    """By phase and step they have more than the rows; `python -m profiler.report` draws them."""
    found = pd.concat([read_tables(folder).runs for folder in sorted((KEPT / "tables").iterdir())])
    for backend, side in SIDES_OF_ROWS.items():
        peaks = found[(found.backend == backend) & found.peak_allocated_bytes.notna()].peak_allocated_bytes
        rows = ROWS[ROWS.grid != "door/logprobs"][f"{side}_allocated_bytes"]
        assert sorted(peaks) == sorted(rows)


def test_another_row_makes_another_page() -> None:
    changed = ROWS.assign(simulated_allocated_bytes=ROWS.simulated_allocated_bytes + 512)
    assert measured_page(changed, FACTS, figure=FIGURE, command="x") != measured_page(
        ROWS, FACTS, figure=FIGURE, command="x"
    )
    assert equal_rows(changed, "simulated", "allocated") != equal_rows(ROWS, "simulated", "allocated")


def test_what_reports_say_of_the_card_is_in_the_rows() -> None:
    (compared,) = COMPARED_CARDS
    assert compared.card == FACTS["name"]
    assert compared.trials == len(fits_on(ROWS, ("measured", "simulated")))
    for side, within in (("simulated", compared.simulated), ("estimated", compared.estimated)):
        assert within.allocated_p95_ratio == pytest.approx(p95(side, "allocated"), abs=5e-6)
        assert within.reserved_p95_ratio == pytest.approx(p95(side, "reserved"), abs=5e-6)


@pytest.mark.parametrize("side", ["measured", *SIDES])
def test_sizes_are_possible(side: str) -> None:
    allocated, reserved = ROWS[f"{side}_allocated_bytes"], ROWS[f"{side}_reserved_bytes"]
    assert (allocated <= reserved).all()
    assert (reserved <= FACTS["total_bytes"]).all()
    assert (allocated >= 2 * ROWS.parameters).all()


def test_every_trial_ends_as_on_the_card() -> None:
    for side in SIDES:
        assert (ROWS[f"{side}_status"] == ROWS.measured_status).all()


def test_held_out_trials_are_those_of_the_rules() -> None:
    assert sorted(set(ROWS[held_out(ROWS)].model)) == ["llama-3.2-1b", "llama-3.2-3b", "qwen3-4b"]


@pytest.mark.parametrize("page", ["README.md", "docs/trust.md", "docs/evidence.md"])
def test_documents_quote_the_rows(page: str) -> None:
    text = " ".join((ROOT / page).read_text().split())
    trials = len(fits_on(ROWS, ("measured", "simulated")))
    said = (
        f"{percent(p95('simulated', 'allocated'))} of allocated and {percent(p95('simulated', 'reserved'))} of reserved"
    )
    assert said in text, said
    assert f"{trials} trials" in text


def test_evidence_says_how_many_are_equal() -> None:
    text = " ".join((ROOT / "docs" / "evidence.md").read_text().split())
    trials = len(fits_on(ROWS, ("measured", "emulated")))
    for side in SIDES:
        equal = equal_rows(ROWS, side, "allocated")
        assert f"equal to the byte in {equal} of {trials}" in text, (side, equal)
