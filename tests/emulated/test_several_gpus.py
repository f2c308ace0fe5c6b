"""The sample of several GPUs, and its page."""

import re
from dataclasses import replace
from pathlib import Path

import builders
import pandas as pd
import pytest

from maintenance.samples.benchmark import BENCHMARK, LAST_THIRD
from maintenance.samples.emulated_sample import sample
from maintenance.samples.sampling import architecture_of, read_sampled, sampled_text
from maintenance.samples.several_gpus import SAMPLES
from maintenance.several_gpus import PAGE, ROWS, emulated_rows, judged, main, page, read_rows
from profiler.analytical.estimate import estimate, has_form
from profiler.domain.errors import EXIT_SOME_TRIALS_FAILED, EXIT_USAGE
from profiler.domain.runs.outcome import Status
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.trial import DistributedType, Tuning

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
EACH = pytest.mark.parametrize("chosen", SAMPLES.values(), ids=SAMPLES)
FIRST = SAMPLES["several_gpus"]


@EACH
def test_the_sample_is_the_kept_one_and_a_larger_one_only_adds(chosen):
    sampled = sample(chosen)
    assert sample(chosen, count=3) == sampled[:3]
    of_one = {spec.distributed_type is DistributedType.NO and spec.num_processes == 1 for spec in sampled}
    assert of_one == {True, False} if chosen is BENCHMARK else {chosen.name in ("float16", "optimizers")}
    assert (REFERENCE / chosen.name / "sampled.jsonl").read_text() == sampled_text(sampled, seed=chosen.seed)


def test_offloads_are_sampled():
    sampled = sample(SAMPLES["sharded"])
    kinds = {(spec.zero_stage, spec.offload_optimizer_device, spec.offload_param_device) for spec in sampled}
    assert kinds >= {(2, "none", "none"), (2, "cpu", "none"), (3, "cpu", "none"), (3, "none", "cpu")}
    assert {spec.fsdp_offload_params for spec in sampled} == {None, True, False}


def test_errors_by_hand():
    specs = sample(FIRST, count=3)
    # FSDP keeps the parameters on the host, for which there is no closed form.
    specs = (*specs[:2], replace(specs[0], fsdp_offload_params=True))
    good = builders.outcome(specs[0])
    ended = {0: (specs[0], good), 1: (specs[1], builders.changed(good, status=Status.FAILED)), 2: (specs[2], good)}
    rows = emulated_rows(ended)
    assert list(rows["status"]) == ["ok", "failed", "ok"]
    assert not any(name.startswith("estimated") for name in rows)
    rows = judged(rows, specs)
    peak, estimated = rows.loc[0, ["emulated_allocated_bytes", "estimated_allocated_bytes"]]
    assert peak == good.peaks.allocated_bytes
    assert estimated == estimate(specs[0], architecture_of(specs[0].model)).peak_allocated_bytes
    assert rows.loc[0, "error"] == pytest.approx(estimated / peak - 1)
    assert list(rows["error"].isna()) == [False, True, True]
    text = page(rows, FIRST, commit="c0ffee")
    assert "1 of 60 sampled trials are compared" in text
    assert "Estimates are those of commit c0ffee." in text
    assert "| failed |" in text
    assert "| ok, no closed form |" in text
    assert "Trials without a peak, or without a closed form:" in text


def test_judging_needs_no_record_and_runs_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("maintenance.several_gpus.committed", lambda: "c0ffee")
    folder = tmp_path / "deepspeed"
    folder.mkdir()
    kept = REFERENCE / "deepspeed"
    (folder / "sampled.jsonl").write_bytes((kept / "sampled.jsonl").read_bytes())
    rows = read_rows(kept / ROWS).head(3).drop(columns=["estimated_allocated_bytes", "error"])
    rows.to_csv(folder / ROWS, index=False)
    words = ["sample=deepspeed", "emulate=false", f"results_dir={tmp_path}"]
    assert main(words) == EXIT_SOME_TRIALS_FAILED
    assert "estimated_allocated_bytes" not in pd.read_csv(folder / ROWS)
    assert main([*words, "judge=true"]) == EXIT_SOME_TRIALS_FAILED
    pd.testing.assert_frame_equal(read_rows(folder / ROWS), read_rows(kept / ROWS).head(3))
    assert "3 of 30 sampled trials are compared" in (folder / PAGE).read_text()
    assert "3 of 30 trials have a peak" in capsys.readouterr().out


def test_what_was_judged_blind_is_not_judged_again(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("maintenance.several_gpus.committed", lambda: "c0ffee")
    folder, kept = tmp_path / "benchmark_last", REFERENCE / "benchmark_last"
    folder.mkdir()
    for name in ("sampled.jsonl", ROWS):
        (folder / name).write_bytes((kept / name).read_bytes())
    words = ["sample=benchmark_last", "emulate=false", "judge=true", f"results_dir={tmp_path}"]
    assert main(words) == EXIT_USAGE
    assert "benchmark_last: has been judged, and once only" in capsys.readouterr().err
    assert (folder / ROWS).read_bytes() == (kept / ROWS).read_bytes() and not (folder / PAGE).exists()
    # Without their estimates they can be.
    read_rows(kept / ROWS).head(2).drop(columns=["error", "reserved_error"]).to_csv(folder / ROWS, index=False)
    assert main(words) == EXIT_SOME_TRIALS_FAILED


@EACH
def test_the_kept_page_is_that_of_the_kept_rows(chosen):
    folder = REFERENCE / chosen.name
    rows = read_rows(folder / ROWS)
    if "error" not in rows:
        assert not (folder / PAGE).exists(), "the page has estimates, and its rows have none"
        return
    kept = (folder / PAGE).read_text()
    said = re.search(r"Estimates are those of commit (\w+)", kept)
    assert page(rows, chosen, commit=said[1] if said else "") == kept
    if chosen.name == "sharded":
        assert said
        return
    sizes = rows["error"].abs()
    assert sizes.median() <= 0.03
    if chosen.what.endswith("benchmark"):
        assert said
        return
    text = (REFERENCE.parents[1] / "docs" / "trust.md").read_text()
    if chosen.name == "deepspeed_blind":
        quoted = (
            f"{100 * sizes.median():.1f} % in the median, {100 * sizes.quantile(0.95):.1f} % in the 95th\npercentile"
        )
        assert f"{quoted}, and {100 * rows['error'].max():+.1f} % at the worst" in text
        assert sizes.max() == rows["error"].max()
        return
    if chosen.name in ("float16", "optimizers"):
        quoted = f"{sizes.median():.1%} in the median,\n{sizes.quantile(0.95):.1%} in the 95th percentile, at most"
        assert f"{quoted} {sizes.max():.1%}".replace("%", " %") in text
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
    rows, specs = read_rows(folder / ROWS), read_sampled((folder / "sampled.jsonl").read_text())
    if "error" not in rows or chosen is LAST_THIRD:  # judged once: tests/benchmark/test_set.py has its estimates
        return
    compared = rows[rows["error"].notna()]
    for row in list(compared.itertuples())[:: len(compared) // 6]:
        spec = specs[row.trial]
        found = estimate(spec, architecture_of(spec.model)).peak_allocated_bytes
        assert int(found) == row.estimated_allocated_bytes


def test_what_failed_has_no_closed_form():
    """RMSprop of bitsandbytes has no kernel for gradients in bfloat16 and states in 32 bits."""
    folder = REFERENCE / "optimizers"
    rows, specs = read_rows(folder / ROWS), read_sampled((folder / "sampled.jsonl").read_text())
    failed = [specs[trial] for trial in rows.loc[rows["status"] != "ok", "trial"]]
    assert sorted(spec.tuning for spec in failed) == ["full", "qlora"]
    assert {spec.optim for spec in failed} == {Optimizer.RMSPROP_32BIT}
    for spec in failed:
        assert not has_form(spec, architecture_of(spec.model))
        adapted = {"lora_rank": 8, "lora_alpha": 8, "lora_target_modules": ("all-linear",)}
        assert has_form(replace(spec, tuning=Tuning.LORA, **adapted), architecture_of(spec.model))


@pytest.mark.parametrize(("word", "said"), [("jobs=0", "jobs=0"), ("sample=x", "must be one of several_gpus, deep")])
def test_bad_words_are_refused(word, said, capsys):
    assert main([word]) == 2
    assert said in capsys.readouterr().err
