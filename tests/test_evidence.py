"""The documents quote the kept rows of emulated and of accuracy trials, and the kept rows are those of the simulation.

`python tests/test_evidence.py` prints what docs/evidence.md and docs/trust.md have to say.
"""

import textwrap
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from maintenance.accuracy.errors import Predictor, predictor_errors
from maintenance.emulated.differences import differences, of_whole_trials, opposite_ends
from maintenance.emulated.results import page_of, read_causes
from maintenance.samples.sampling import read_sampled
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.trials.trial import TrialSpec
from profiler.worker.simulated import run_simulated

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "results" / "reference" / "emulated"
KINDS = ("allocated", "reserved")
SIMULATED_AGAIN = 2
"""Trials that the test simulates again: those with the fewest tokens on the smallest model."""
SMALLEST = "qwen2.5-0.5b"


def rows() -> pd.DataFrame:
    return pd.read_csv(FOLDER / "rows.csv")


def trials() -> tuple[TrialSpec, ...]:
    return read_sampled((FOLDER / "sampled.jsonl").read_text())


def alike(*phases: str) -> pd.DataFrame:
    """The rows of these phases of trials that end well on both sides."""
    found = rows()
    ends_well = (found.emulated_status == "ok") & (found.simulated_status == "ok")
    return found[ends_well & found.phase.isin(phases or set(found.phase) - {"all"})]


def sentence(kind: str) -> str:
    """How far whole trials differ in one metric."""
    found = alike("all")
    simulated, emulated = found[f"simulated_{kind}_bytes"], found[f"emulated_{kind}_bytes"]
    worst = (simulated / emulated - 1).abs().max() * 100
    if not worst:
        return f"equal to the byte in all {len(found)} trials"
    return f"equal to the byte in {(simulated == emulated).sum()} of {len(found)} trials, at most {worst:.4f} % off"


def phases_sentence() -> str:
    """How far single phases differ."""
    found = alike()
    parts = []
    for kind in KINDS:
        simulated, emulated = found[f"simulated_{kind}_bytes"], found[f"emulated_{kind}_bytes"]
        worst = (simulated / emulated - 1).abs().max() * 100
        parts.append(f"{kind} memory is equal in {(simulated == emulated).sum()} and at most {worst:.3f} % off")
    return f"Of {len(found):,} phases, {parts[0]}; {parts[1]}."


def ends_table() -> str:
    """How trials end, as a table."""
    whole = rows()[rows().phase == "all"]
    counts = Counter(zip(whole.emulated_status, whole.simulated_status, strict=True)).most_common()
    lines = [f"| {emulated} | {simulated} | {count} |" for (emulated, simulated), count in counts]
    return " ".join(["| emulated | simulated | trials |", "|---|---|---:|", *lines])


def required_sentence() -> str:
    """How far what trials without memory would have needed differs."""
    found = rows()
    found = found[found.phase == "required"]
    equal = sum(found[f"simulated_{kind}_bytes"].eq(found[f"emulated_{kind}_bytes"]).astype(int) for kind in KINDS).eq(
        len(KINDS)
    )
    return f"of {len(found)} trials that run out of memory on both sides, both peaks are equal in {equal.sum()}"


def text(name: str) -> str:
    return " ".join((ROOT / name).read_text().split())


def test_the_rows_are_those_of_trials_that_were_written_down() -> None:
    assert set(rows().trial) == set(range(len(trials())))
    assert f"{len(trials())} trials were sampled by a seed" in text("docs/evidence.md")
    assert {"ok", "oom"} < set(rows().emulated_status)


@pytest.mark.parametrize("kind", KINDS)
def test_the_documents_say_what_the_rows_say(kind: str) -> None:
    assert sentence(kind) in text("docs/evidence.md")


@pytest.mark.parametrize("said", [phases_sentence, ends_table, required_sentence])
def test_the_documents_say_how_phases_and_ends_compare(said: Callable[[], str]) -> None:
    assert said() in text("docs/evidence.md")


def test_the_thresholds_hold_and_every_opposite_end_has_its_cause() -> None:
    assert [each.verdict for each in of_whole_trials(differences(rows())) if not each.is_within] == []
    assert [each for each in opposite_ends(rows(), read_causes(FOLDER)) if not each.cause] == []


def test_the_kept_page_follows_from_the_kept_rows() -> None:
    kept = (FOLDER / "report.md").read_text()
    versions = kept.partition("model of the allocator. ")[2].partition(". Nothing here is measured")[0]
    assert kept == page_of(rows(), FOLDER, sampled=len(trials()), versions=versions)


def test_the_kept_rows_are_those_of_the_simulation() -> None:
    kept = rows().set_index(["trial", "phase"])
    sampled = enumerate(trials())
    small = [(number, spec) for number, spec in sampled if spec.model == SMALLEST and (number, "all") in kept.index]
    for number, spec in sorted(small, key=lambda each: _tokens(each[1]))[:SIMULATED_AGAIN]:
        for peak in run_simulated(spec, BUILTIN_MODELS[spec.model].config).peaks.phases:
            row = kept.loc[(number, peak.phase.value)]
            assert (peak.peak_allocated_bytes, peak.peak_reserved_bytes) == (
                row.simulated_allocated_bytes,
                row.simulated_reserved_bytes,
            )


def accuracy_paragraph() -> str:
    """The paragraph of docs/trust.md about the errors of the estimate and of other predictors, from the kept rows."""
    found = {
        summary.of: summary
        for summary in predictor_errors(pd.read_parquet(ROOT / "results" / "reference" / "accuracy" / "rows.parquet"))
    }
    estimate, reserved = found[Predictor.ESTIMATE.value], found["closed form, reserved"]
    other = {each: f"{found[each.value].median_ratio:.0%}".replace("%", " %") for each in Predictor}
    return (
        f"Over [{estimate.rows} trials](../results/reference/accuracy/accuracy.md) that were sampled by a seed and "
        "written down before any was simulated, the error of the estimate against the simulation is "
        f"{estimate.median_ratio * 100:.1f} % in the median and {estimate.p95_ratio * 100:.1f} % in the 95th "
        f"percentile (reserved memory: {reserved.median_ratio * 100:.1f} % and {reserved.p95_ratio * 100:.0f} %). On "
        f"the same trials a published rule of thumb has a median error of {other[Predictor.BLOG]}, `accelerate "
        f"estimate-memory` {other[Predictor.ACCELERATE]}, and the formulas of a public verl report "
        f"{other[Predictor.VERL_REPORT]}."
    )


def test_the_accuracy_paragraph_has_the_numbers_of_the_kept_rows() -> None:
    assert accuracy_paragraph() in text("docs/trust.md")


def _tokens(spec: TrialSpec) -> int:
    rows_at_once = spec.per_device_train_batch_size * spec.gradient_accumulation_steps * spec.steps
    return rows_at_once * (spec.max_prompt_length + spec.longest)


if __name__ == "__main__":
    for said in (*map(sentence, KINDS), phases_sentence(), ends_table(), required_sentence(), accuracy_paragraph()):
        print(textwrap.fill(said, width=120, break_long_words=False, break_on_hyphens=False))
