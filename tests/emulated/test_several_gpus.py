"""The sample of several GPUs, and its page."""

from pathlib import Path

import builders
import pandas as pd
import pytest

from maintenance.several_gpus import COUNT, GRID, ROWS, comparison, main, page, sample
from profiler.domain.outcome import Status
from profiler.domain.trial import DistributedType

KEPT = Path(__file__).parents[2] / "results" / "reference" / GRID


def test_the_sample_is_the_kept_one_and_a_larger_one_only_adds():
    first = sample(5)
    assert sample(3) == first[:3]
    assert all(spec.distributed_type is not DistributedType.NO and spec.num_processes > 1 for spec in first)
    assert len((KEPT / "sampled.jsonl").read_text().splitlines()) >= COUNT


def test_errors_by_hand():
    spec = sample(1)[0]
    good = builders.outcome(spec)
    failed = builders.changed(good, status=Status.FAILED)
    rows = comparison([(spec, good), (spec, failed)])
    peak, estimated = rows.loc[0, ["emulated_allocated_bytes", "estimated_allocated_bytes"]]
    assert peak == good.peaks.allocated_bytes
    assert rows.loc[0, "error"] == pytest.approx(estimated / peak - 1)
    assert pd.isna(rows.loc[1, "error"])
    text = page(rows, sampled=60)
    assert "1 of 60 sampled trials are compared" in text
    assert "failed" in text


def test_the_kept_page_is_that_of_the_kept_rows():
    rows = pd.read_csv(KEPT / ROWS)
    assert page(rows, sampled=COUNT) == (KEPT / "README.md").read_text()
    sizes = rows["error"].abs()
    assert sizes.median() <= 0.03
    quoted = f"{sizes.median():.1%} in the median and {sizes.quantile(0.95):.1%} in the\n95th percentile".replace(
        "%", " %"
    )
    assert quoted in (KEPT.parents[2] / "docs" / "trust.md").read_text()


def test_bad_words_are_refused(capsys):
    assert main(["jobs=0"]) == 2
    assert "jobs=0" in capsys.readouterr().err
