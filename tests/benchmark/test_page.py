"""The page of the benchmark is that of its rows and kept answers."""

from dataclasses import replace

import pytest

from maintenance.benchmark import main
from maintenance.benchmark.answers.asking import kept_answers, kept_costs
from maintenance.benchmark.answers.predictors import NOT_RANKED, PREDICTORS
from maintenance.benchmark.ranking.own_results import of_the_set
from maintenance.benchmark.ranking.page import benchmark_page
from maintenance.benchmark.rows.kept import all_rows, first_estimates
from profiler.domain.errors import EXIT_OK, EXIT_USAGE
from profiler.domain.runs.shared import RowOrigin


@pytest.fixture(scope="module")
def page():
    return main.page_of(all_rows())


def test_the_page_is_that_of_its_rows(page):
    assert page == main.PAGE.read_text()


def test_who_is_not_ranked_is_named_with_the_reason(page):
    assert all(f"{name} ({reason})" in page for name, reason in NOT_RANKED.items())
    assert all(each.title in page for each in PREDICTORS.values())


def test_a_predictor_of_another_trainers_jobs_has_no_score(page):
    scored = page.partition("## What an answer costs")[0]
    others = [each for each in PREDICTORS.values() if each.own_trainer]
    assert others
    assert not any(f"| {each.title} |" in scored for each in others)
    assert all(f"| {each.title} |" in page for each in others)


def test_where_this_project_loses_is_said(page):
    losses = page.partition("## Where this project loses")[2].partition("\n## ")[0]
    assert "- fitcheck: " in losses
    assert losses.count("| allocated |") + losses.count("| reserved |") == 15


def test_who_is_closer_in_single_rows_is_counted():
    row = next(each for each in all_rows() if each.origin is RowOrigin.OURS and each.peaks)
    exact = {row.row_id: {peak.metric.value: peak.size_bytes for peak in row.peaks}}
    low = {row.row_id: {peak.metric.value: peak.size_bytes // 2 for peak in row.peaks}}
    answers = {**{key: {row.row_id: {}} for key in PREDICTORS}, "estimate": low, "rule": exact}
    text = benchmark_page([row], answers, kept_costs(), figure="errors.png")
    assert "Closer than the estimate, row by row: rule of thumb of a blog in 1 of 1." in text
    answers |= {"estimate": exact, "rule": low}
    assert "row by row: nobody." in benchmark_page([row], answers, kept_costs(), figure="errors.png")


def test_jobs_that_are_simulated_to_the_byte_are_counted():
    of_one = (each for each in all_rows() if each.job["num_processes"] == 1 and len(each.peaks) == 2)
    row = next(each for each in of_one if each.row_id.startswith("benchmark-"))
    allocated, reserved = (peak.size_bytes for peak in row.peaks)
    said = {"allocated": allocated, "reserved": reserved + 512}
    answers = {**{key: {row.row_id: {}} for key in PREDICTORS}, "simulation": {row.row_id: said}}
    text = benchmark_page([row], answers, kept_costs(), figure="errors.png")
    assert "Of 1 jobs of one GPU of the first two thirds, 1 are simulated too" in text
    assert "equal to the byte in 1 of them, reserved memory in 0." in text


def test_blind_figures_stand_beside_those_of_today(page):
    """As results/reference/benchmark_last/README.md has them, and that of the first two thirds of commit 424c3297."""
    part = page.partition("### Before the jobs were seen, and today")[2].partition("\n## ")[0]
    assert "| the first two thirds | before | 283 of 313 | 0.1 % | 1.8 % | -3.0 % | +28.1 % |" in part
    assert "| the last third | before | 142 of 153 | 0.3 % | 2.7 % | -18.1 % | +4.6 % |" in part
    assert "| the last third, FSDP | before | 11 of 22 | 1.2 % | 12.4 % | -18.1 % | +0.8 % |" in part
    assert "| the last third | before | 142 of 153 | 3.3 % | 19.5 % | -34.6 % | +36.0 % |" in part
    assert part.count("| the last third | today | 145 of 153 |") == 2
    assert "**Its figures for FSDP are not blind**" in part


def test_answers_that_changed_since_are_counted_by_hand():
    rows = [row for row in all_rows() if row.row_id in ("benchmark_last-001", "benchmark_last-085")]
    assert [row.job["distributed_type"] for row in rows] == ["multi_gpu", "fsdp"]
    first = {row.row_id: first_estimates()[row.row_id] for row in rows}
    answers = {key: {row.row_id: {} for row in rows} for key in PREDICTORS}
    text = "\n".join(of_the_set(rows, {**answers, "estimate": first}))
    assert "changed since: 0 of the last third (0 by FSDP)." in text
    other = {"allocated": 30 * 10**9, "reserved": first["benchmark_last-085"]["reserved"]}
    text = "\n".join(of_the_set(rows, {**answers, "estimate": {**first, "benchmark_last-085": other}}))
    assert "changed since: 1 of the last third (1 by FSDP)." in text
    assert of_the_set([], answers) == ()


def test_reserved_memory_has_a_table_of_its_own(page):
    part = page.partition("Reserved memory, which the tables above leave out")[2].partition("\n## ")[0]
    lines = [line for line in part.splitlines() if " | our " in line]
    assert [line.split(" | ")[:2] for line in lines] == [
        [f"| {origin}", f"our {who}"]
        for origin in ("measured by others", "measured here", "emulated")
        for who in ("simulation", "estimate")
    ]


def test_large_errors_of_the_simulation_are_named(page):
    part = page.partition("## Where this project loses")[2].partition("\n## ")[0]
    assert "is more than 10% off in 2 measured rows: fms-mixtral-qlora-1x4 +141.3 % (transformers 4.48.1)" in part
    row = next(each for each in all_rows() if each.origin is RowOrigin.OURS and each.peaks)
    exact = {row.row_id: {peak.metric.value: peak.size_bytes for peak in row.peaks}}
    answers = {**{key: {row.row_id: {}} for key in PREDICTORS}, "estimate": exact, "simulation": exact}
    assert "The simulation, with" not in benchmark_page([row], answers, kept_costs(), figure="errors.png")


def test_a_better_answer_moves_a_predictor_to_the_top():
    rows = [row for row in all_rows() if row.origin is RowOrigin.OTHERS and not row.assumed and not row.beyond]
    exact = {row.row_id: {peak.metric.value: peak.size_bytes for peak in row.peaks} for row in rows}
    answers = {**{key: kept_answers(key) for key in PREDICTORS}, "rule": exact}
    text = benchmark_page(rows, answers, kept_costs(), figure="errors.png")
    first = text.partition("| --- |")[2].splitlines()[1]
    assert first.startswith(f"| rule of thumb of a blog | 100% | {len(rows)} | 0.0 % | 0.0 % | 0% | none | 100.0%")


def test_rows_that_were_sent_have_a_table_of_their_own(page):
    assert "## Measured and sent" not in page
    row = next(each for each in all_rows() if each.origin is RowOrigin.OURS and each.peaks)
    sent = replace(row, row_id="sent-0123456789abcdef", origin=RowOrigin.SENT)
    answers = {key: kept_answers(key) for key in PREDICTORS}
    text = benchmark_page([*all_rows(), sent], answers, kept_costs(), figure="errors.png")
    assert "1 are measured and sent" in text
    assert text.index("## Measured here") < text.index("## Measured and sent") < text.index("### rows that were sent")


def test_help_starts_nothing(monkeypatch, capsys):
    monkeypatch.setattr(main, "_run", lambda _: pytest.fail("predictors were asked"))
    assert main.main(["--help"]) == EXIT_OK
    assert "environments=FOLDER" in capsys.readouterr().out


def test_an_unknown_key_is_refused(capsys):
    assert main.main(["environment=x"]) == EXIT_USAGE
    assert "environments" in capsys.readouterr().err
