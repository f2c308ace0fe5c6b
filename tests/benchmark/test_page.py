"""The page of the benchmark is that of its rows and kept answers."""

from dataclasses import replace

import pytest

from maintenance.benchmark import main
from maintenance.benchmark.answers.asking import kept_answers, kept_costs
from maintenance.benchmark.answers.predictors import NOT_RANKED, PREDICTORS
from maintenance.benchmark.ranking.page import benchmark_page
from maintenance.benchmark.rows.kept import all_rows
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
    row = next(each for each in all_rows() if each.row_id.startswith("benchmark") and len(each.peaks) == 2)
    allocated, reserved = (peak.size_bytes for peak in row.peaks)
    said = {"allocated": allocated, "reserved": reserved + 512}
    answers = {**{key: {row.row_id: {}} for key in PREDICTORS}, "simulation": {row.row_id: said}}
    text = benchmark_page([row], answers, kept_costs(), figure="errors.png")
    assert "1 jobs of one GPU of that sample are simulated too" in text
    assert "equal to the byte in 1 of them, reserved memory in 0." in text


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
