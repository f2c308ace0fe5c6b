"""What is kept of the campaigns on a real card: each page says what its rows say, and documents quote them."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from maintenance.accuracy.errors import error_ratios
from maintenance.campaign.compared.kept import FIGURE, PAGE, TABLES, kept_facts, kept_rows, page_of
from maintenance.campaign.compared.measured_page import CAMPAIGNS, equal_rows, error_lines, measured_page
from maintenance.campaign.compared.measured_rows import FIRST_KEYS, METRICS, fits_on, held_out
from maintenance.campaign.compared.measured_rows import SIDES as SIDES_OF_ROWS
from maintenance.samples.sampling import architecture_of
from profiler.analytical.estimate import estimate_with_replay
from profiler.analytical.replayed.trial import has_replay
from profiler.domain.cards.capabilities import COMPARED
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.trials.trial import Backend
from profiler.rendering.memory_words import compared_text
from profiler.rendering.sweep.words import percent
from profiler.storage.sweep_tables.carried import stored_trials
from profiler.storage.sweep_tables.tables import read_tables
from profiler.storage.tables.schema import RUNS
from profiler.storage.tables.table_files import open_table_file

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Kept:
    """One kept campaign."""

    name: str

    @property
    def folder(self) -> Path:
        return ROOT / "results" / "reference" / self.name

    @cached_property
    def rows(self) -> pd.DataFrame:
        return kept_rows(self.folder)

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        return kept_facts(self.folder)

    @property
    def sides(self) -> list[str]:
        """Predictions that run a trial to its end."""
        return [side for side in ("emulated", "simulated", "corrected") if f"{side}_status" in self.rows]

    def p95(self, side: str, metric: str, rows: pd.DataFrame | None = None) -> float:
        found = fits_on(self.rows if rows is None else rows, ("measured", *(one for one in self.sides if one == side)))
        errors = error_ratios(found, f"{side}_{metric}_bytes", f"measured_{metric}_bytes")
        return float(pd.Series(errors).abs().quantile(0.95))


KEPT = {name: Kept(name) for name in CAMPAIGNS}
FIRST, SECOND, THIRD, H100, FOURTH = (
    KEPT[name] for name in ("h200", "h200_second", "h200_third", "h100", "h200_fourth")
)
each = pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)


@each
def test_the_page_is_that_of_its_rows(kept: Kept) -> None:
    assert (kept.folder / PAGE).read_text() == page_of(kept.folder)


@each
def test_the_tables_hold_the_rows(kept: Kept) -> None:
    """By phase and step they have more than the rows; `python -m profiler.report` draws them."""
    found = pd.concat([read_tables(folder).runs for folder in sorted((kept.folder / TABLES).iterdir())])
    for backend, side in SIDES_OF_ROWS.items():
        peaks = found[(found.backend == backend) & found.peak_allocated_bytes.notna()].peak_allocated_bytes
        rows = kept.rows[kept.rows.grid != "door/logprobs"][f"{side}_allocated_bytes"].dropna()
        assert sorted(peaks) == sorted(rows)


@each
def test_another_row_makes_another_page(kept: Kept) -> None:
    changed = kept.rows.assign(simulated_allocated_bytes=kept.rows.simulated_allocated_bytes + 512)
    pages = {
        measured_page(rows, kept.facts, CAMPAIGNS[kept.name], figure=FIGURE, command="x")
        for rows in (changed, kept.rows)
    }
    assert len(pages) == 2
    assert equal_rows(changed, "simulated", "allocated") != equal_rows(kept.rows, "simulated", "allocated")


@each
def test_every_row_was_measured_to_its_end(kept: Kept) -> None:
    assert set(kept.rows.measured_status) <= {"ok", "oom"}
    assert (kept.rows.gpu_s > 0).all()


@each
def test_sizes_are_possible(kept: Kept) -> None:
    for side in ("measured", *kept.sides):
        allocated, reserved = kept.rows[f"{side}_allocated_bytes"], kept.rows[f"{side}_reserved_bytes"]
        assert (allocated <= reserved).all()
        assert (reserved <= kept.facts["total_bytes"]).all()
        sound = allocated.notna()
        weights = kept.rows.parameters * kept.rows.tuning.map({"qlora": 0.5}).fillna(2.0)  # bytes: 4 bits, or bfloat16
        assert (allocated[sound] >= weights[sound]).all()


@each
def test_every_trial_ends_as_on_the_card(kept: Kept) -> None:
    for side in kept.sides:
        ran = kept.rows[kept.rows[f"{side}_status"].notna()]
        others = ran[ran[f"{side}_status"] != ran.measured_status]
        expected = [("deepseek-v2-lite", "failed")] if (kept, side) == (FOURTH, "simulated") else []  # docs/evidence.md
        assert list(zip(others.model, others[f"{side}_status"], strict=True)) == expected
    assert kept.rows.simulated_status.notna().all()


def test_all_verdicts_of_capped_cards_are_right() -> None:
    capped = SECOND.rows[SECOND.rows.gpu.notna()]
    fits = capped.measured_status == "ok"
    assert (len(capped), int(fits.sum())) == (19, 10)
    assert list(capped.estimated_fit) == ["fits" if one else "does not fit" for one in fits]


@pytest.mark.parametrize(("later", "trials", "capped"), [(SECOND, 9, 6), (THIRD, 4, 0), (H100, 21, 0)])
def test_trials_that_ran_on_both_cards_are_equal_to_the_byte(later: Kept, trials: int, capped: int) -> None:
    """On an H100 too, and those of the second campaign that are within a cap which they do not reach."""
    assert len({kept.facts["uuid"] for kept in (FIRST, SECOND, H100)}) == 3
    keys = [name for name in FIRST_KEYS if name in FIRST.rows]
    again = later.rows[(later.rows.alloc_conf == "") & (later.rows.recipe == "grpo")]
    both = fits_on(again, ("measured",)).merge(FIRST.rows, on=keys, suffixes=("", "_first"))
    assert (len(both), int(both.gpu.notna().sum())) == (trials, capped)
    for metric in METRICS:
        assert list(both[f"measured_{metric}_bytes"]) == list(both[f"measured_{metric}_bytes_first"])


ALL_ROWS = pd.concat([kept.rows for kept in KEPT.values()], ignore_index=True)


def p95_of_all(side: str, metric: str) -> float:
    found = fits_on(ALL_ROWS, ("measured", "simulated"))
    return float(
        pd.Series(error_ratios(found, f"{side}_{metric}_bytes", f"measured_{metric}_bytes")).abs().quantile(0.95)
    )


def test_what_reports_say_of_the_card_is_in_the_rows() -> None:
    assert COMPARED.cards == Counter(kept.facts["name"] for kept in KEPT.values())
    for side, within in (("simulated", COMPARED.simulated), ("estimated", COMPARED.estimated)):
        assert within.trials == len(fits_on(ALL_ROWS, ("measured", "simulated")))
        assert within.allocated_p95_ratio == pytest.approx(p95_of_all(side, "allocated"), abs=5e-6)
        assert within.reserved_p95_ratio == pytest.approx(p95_of_all(side, "reserved"), abs=5e-6)
    assert compared_text(lambda found: found.simulated) in " ".join((ROOT / "README.md").read_text().split())


def replayed_errors() -> Iterator[tuple[float, float]]:
    """Yield the errors of allocated and reserved memory of each measured trial that has a replay."""
    for kept in KEPT.values():
        card = next(gpu for gpu in KNOWN_GPUS.values() if gpu.title == kept.facts["name"])
        for path in sorted((kept.folder / TABLES).glob("*/runs.parquet")):
            rows = open_table_file(path, RUNS).rows()
            measured = {row["trial_id"]: row for row in rows.to_pylist() if row["status"] == "ok"}
            for trial in stored_trials(rows):
                spec = replace(trial.spec, gpu=trial.spec.gpu or card.name)  # capped to that card, or whole
                if trial.spec.backend is Backend.CUDA and trial.trial_id in measured and has_replay(spec):
                    found, row = estimate_with_replay(spec, architecture_of(spec.model)), measured[trial.trial_id]
                    yield (
                        found.peak_allocated_bytes / row["peak_allocated_bytes"] - 1,
                        found.peak_reserved_bytes / row["peak_reserved_bytes"] - 1,
                    )


def test_what_estimates_of_one_trial_say_of_the_card_is_in_the_rows() -> None:
    errors = pd.DataFrame(replayed_errors(), columns=["allocated", "reserved"]).abs()
    assert COMPARED.replayed.trials == len(errors)
    assert COMPARED.replayed.allocated_p95_ratio == pytest.approx(errors.allocated.quantile(0.95), abs=5e-6)
    assert COMPARED.replayed.reserved_p95_ratio == pytest.approx(errors.reserved.quantile(0.95), abs=5e-6)


def test_held_out_trials_are_those_of_the_rules() -> None:
    assert sorted(set(FIRST.rows[held_out(FIRST.rows)].model)) == ["llama-3.2-1b", "llama-3.2-3b", "qwen3-4b"]
    assert set(SECOND.rows[held_out(SECOND.rows)].recipe) == {"sft", "dpo"}


@pytest.mark.parametrize("page", ["docs/trust.md", "docs/evidence.md"])
def test_documents_quote_the_rows(page: str) -> None:
    text = " ".join((ROOT / page).read_text().split())
    trials = len(fits_on(FIRST.rows, ("measured", "simulated")))
    said = within_text(FIRST)
    assert said in text, said
    assert f"{trials} trials" in text


def within_text(kept: Kept, rows: pd.DataFrame | None = None) -> str:
    errors = [percent(kept.p95("simulated", metric, rows)) for metric in ("allocated", "reserved")]
    return f"{errors[0]} of allocated and {errors[1]} of reserved"


def evidence() -> str:
    return " ".join((ROOT / "docs" / "evidence.md").read_text().split())


@each
def test_evidence_says_how_many_are_equal(kept: Kept) -> None:
    for side in kept.sides:
        trials = len(fits_on(kept.rows, ("measured", side)))
        equal = equal_rows(kept.rows, side, "allocated")
        assert f"equal to the byte in {equal} of {trials}" in evidence(), (side, equal)


@pytest.mark.parametrize(
    ("kept", "recipe"),
    [
        *((kept, recipe) for kept in (SECOND, THIRD) for recipe in ("grpo", "sft", "dpo")),
        *((FOURTH, recipe) for recipe in ("grpo", "sft", "kto", "reward")),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_evidence_has_the_errors_by_trainer(kept: Kept, recipe: str) -> None:
    lines = error_lines(kept.rows[kept.rows.recipe == recipe])
    assert len(lines) > 6
    for line in lines:
        if line[0] in ("emulated", "simulated", "estimated"):
            assert f"| {recipe.upper()} | {' | '.join(line)} |" in evidence(), line
