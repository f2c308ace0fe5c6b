"""The sample of several GPUs, and its page."""

from pathlib import Path

import builders
import pandas as pd
import pytest

from maintenance.samples.sampling import architecture_of, read_sampled
from maintenance.several_gpus import ROWS, SAMPLES, comparison, main, page, sample
from profiler.analytical.estimate import estimate
from profiler.domain.runs.outcome import Status
from profiler.domain.trials.trial import DistributedType

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
EACH = pytest.mark.parametrize("chosen", SAMPLES.values(), ids=SAMPLES)
FIRST = SAMPLES["several_gpus"]


@EACH
def test_the_sample_is_the_kept_one_and_a_larger_one_only_adds(chosen):
    first = sample(chosen, count=5)
    assert sample(chosen, count=3) == first[:3]
    assert all(spec.distributed_type is not DistributedType.NO and spec.num_processes > 1 for spec in first)
    kept = read_sampled((REFERENCE / chosen.name / "sampled.jsonl").read_text())
    assert len(kept) == chosen.count
    assert kept[:5] == first


def test_errors_by_hand():
    spec = sample(FIRST, count=1)[0]
    good = builders.outcome(spec)
    failed = builders.changed(good, status=Status.FAILED)
    rows = comparison([(spec, good), (spec, failed), (spec, None)])
    assert list(rows["status"]) == ["ok", "failed", "not run"]
    peak, estimated = rows.loc[0, ["emulated_allocated_bytes", "estimated_allocated_bytes"]]
    assert peak == good.peaks.allocated_bytes
    assert rows.loc[0, "error"] == pytest.approx(estimated / peak - 1)
    assert pd.isna(rows.loc[1, "error"])
    text = page(rows, FIRST)
    assert "1 of 60 sampled trials are compared" in text
    assert "failed" in text


@EACH
def test_the_kept_page_is_that_of_the_kept_rows(chosen):
    folder = REFERENCE / chosen.name
    rows = pd.read_csv(folder / ROWS)
    assert page(rows, chosen) == (folder / "README.md").read_text()
    sizes = rows["error"].abs()
    assert sizes.median() <= 0.03
    text = (REFERENCE.parents[1] / "docs" / "trust.md").read_text()
    if chosen.name == "deepspeed_blind":
        quoted = (
            f"{100 * sizes.median():.1f} % in the median, {100 * sizes.quantile(0.95):.1f} % in the 95th\npercentile"
        )
        assert f"{quoted}, and {100 * rows['error'].max():+.1f} % at the worst" in text
        assert sizes.max() == rows["error"].max()
        return
    if chosen is not FIRST:
        assert f"the error is {100 * sizes.median():.1f} %\nin the median and at most {100 * sizes.max():.1f} %" in text
        return
    quoted = f"{sizes.median():.1%} in the median and {sizes.quantile(0.95):.1%} in the\n95th percentile".replace(
        "%", " %"
    )
    assert quoted in text


@EACH
def test_the_kept_rows_have_the_estimates_of_today(chosen):
    folder = REFERENCE / chosen.name
    rows, specs = pd.read_csv(folder / ROWS), read_sampled((folder / "sampled.jsonl").read_text())
    for row, spec in list(zip(rows.itertuples(), specs, strict=True))[:: len(specs) // 6]:
        found = estimate(spec, architecture_of(spec.model)).peak_allocated_bytes
        assert int(found) == row.estimated_allocated_bytes


@pytest.mark.parametrize(("word", "said"), [("jobs=0", "jobs=0"), ("sample=x", "must be one of several_gpus, deep")])
def test_bad_words_are_refused(word, said, capsys):
    assert main([word]) == 2
    assert said in capsys.readouterr().err
