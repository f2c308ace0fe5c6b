"""The documents quote the kept rows of emulated and of accuracy trials, and the kept rows are those of the simulation.

`python tests/test_evidence.py` prints the paragraph of docs/trust.md about the accuracy of the estimate.
"""

import json
import textwrap
from pathlib import Path

import pandas as pd
import pytest

from profiler.analysis.predictors import Predictor, predictor_errors
from profiler.config.identity import spec_from_mapping
from profiler.domain.builtin_models import BUILTIN_MODELS
from profiler.worker.simulated import run_simulated

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "results" / "reference" / "emulated"
KINDS = ("allocated", "reserved")
SIMULATED_AGAIN = 2
"""Trials that the test simulates again: those with the fewest tokens on the smallest model."""


def rows() -> pd.DataFrame:
    return pd.read_csv(FOLDER / "rows.csv")


def trials() -> dict[str, dict[str, object]]:
    lines = (FOLDER / "trials.jsonl").read_text().splitlines()
    return {found["name"]: found["spec"] for found in map(json.loads, lines)}


def whole() -> pd.DataFrame:
    """One row per trial that ran to its end on both sides."""
    found = rows()
    return found[(found.phase == "all") & (found.emulated_status == "ok") & (found.simulated_status == "ok")]


def sentence(kind: str) -> str:
    found = whole()
    error = (found[f"simulated_{kind}_bytes"] / found[f"emulated_{kind}_bytes"] - 1).abs() * 100
    if not error.any():
        return f"equal to the byte in all {len(found)} trials"
    return f"equal to the byte in {(error == 0).sum()} of {len(found)} trials, at most {error.max():.3f} % off"


def text(name: str) -> str:
    return " ".join((ROOT / name).read_text().split())


def test_every_trial_that_was_written_down_has_its_rows() -> None:
    assert set(rows().trial) == set(trials())
    assert {"ok", "oom"} < set(rows().emulated_status)


@pytest.mark.parametrize("kind", KINDS)
def test_the_documents_say_what_the_rows_say(kind: str) -> None:
    assert sentence(kind) in text("docs/evidence.md")


def test_the_phases_are_as_the_documents_say() -> None:
    found = rows()
    found = found[(found.phase != "all") & (found.emulated_status == "ok")]
    equal = {kind: (found[f"simulated_{kind}_bytes"] == found[f"emulated_{kind}_bytes"]).sum() for kind in KINDS}
    expected = f"of {len(found)} phases, allocated memory is equal in {equal['allocated']} and at most"
    assert expected in text("docs/evidence.md")
    assert f"reserved memory is equal in {equal['reserved']} and at most" in text("docs/evidence.md")


def test_both_sides_end_in_the_same_way() -> None:
    """What torch refuses to run on a card is `unsupported` where it is simulated."""
    ends = set(zip(rows().emulated_status, rows().simulated_status, strict=True))
    assert ends == {("ok", "ok"), ("oom", "oom"), ("failed", "unsupported")}


def test_the_kept_rows_are_those_of_the_simulation() -> None:
    by_size = sorted(trials().items(), key=lambda item: (str(item[1]["model"]) != "qwen2.5-0.5b", _tokens(item[1])))
    kept = rows().set_index(["trial", "phase"])
    for name, keys in by_size[:SIMULATED_AGAIN]:
        spec = spec_from_mapping(keys)
        outcome = run_simulated(spec, BUILTIN_MODELS[spec.model].config)
        for peak in outcome.peaks.phases:
            row = kept.loc[(name, peak.phase.value)]
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


def _tokens(keys: dict[str, object]) -> int:
    rows_at_once = int(str(keys["per_device_train_batch_size"])) * int(str(keys["steps_per_generation"]))
    return rows_at_once * (int(str(keys["max_prompt_length"])) + int(str(keys["max_completion_length"])))


if __name__ == "__main__":
    print(textwrap.fill(accuracy_paragraph(), width=120, break_long_words=False, break_on_hyphens=False))
