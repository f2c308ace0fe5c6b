"""The kept trials with images: their estimates are those of today, and docs/trust.md says how far off they are."""

from pathlib import Path

import pandas as pd
import pytest

from maintenance.sampled_file import SAMPLED
from maintenance.sampling import architecture_of, read_sampled
from maintenance.vision.main import NAME, ROWS, sample
from profiler.analytical.estimate import phase_instants

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "results" / "reference" / NAME


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return pd.read_csv(KEPT / ROWS)


def test_the_kept_sample_is_that_of_its_seed():
    assert read_sampled((KEPT / SAMPLED).read_text()) == sample()


def test_the_estimate_is_that_of_the_table(rows):
    for number, spec in enumerate(sample()):
        found = {
            phase.value: int(each.total_bytes)
            for phase, each in phase_instants(spec, architecture_of(spec.model)).items()
        }
        kept = rows[(rows.trial == number) & (rows.phase != "all")]
        assert dict(zip(kept.phase, kept.estimated_allocated_bytes, strict=True)) == found, number


def test_the_document_quotes_the_errors(rows):
    whole, single = rows[rows.phase == "all"].error.abs(), rows[rows.phase != "all"].error.abs()
    text = " ".join((ROOT / "docs" / "trust.md").read_text(encoding="utf-8").split())
    peaks = f"the error of the peak is {100 * whole.median():.1f} % in the median and {100 * whole.max():.1f} % at most"
    assert peaks in text
    assert f"that of a single phase {100 * single.median():.1f} % and {100 * single.max():.1f} %" in text
    assert f"Over [{len(whole)} trials]" in text
