"""`python -m profiler.report OLD NEW max_increase=2%`: a guard for jobs."""

import builders
import pytest

from profiler.domain.errors import EXIT_ANSWER_IS_NO, EXIT_OK, ProfilerError
from profiler.domain.runs.outcome import Status
from profiler.report.main import main

SPECS = builders.lora_vs_full_specs(["qwen2.5-0.5b", "qwen2.5-3b"])


def _folder(path, specs=SPECS, *, scale=1.0, status=None):
    records = [builders.record(spec, outcome=builders.outcome(spec, scale=scale)) for spec in specs]
    if status is not None:
        records[0] = builders.record(specs[0], outcome=builders.failed(status))
    return str(builders.write_folder(path, records))


@pytest.fixture
def before(tmp_path):
    return _folder(tmp_path / "before")


@pytest.mark.parametrize(
    ("scale", "limit", "code"),
    [(1.0, "0", EXIT_OK), (1.015, "2%", EXIT_OK), (1.03, "2%", EXIT_ANSWER_IS_NO), (1.03, "0.05", EXIT_OK)],
)
def test_a_peak_that_grew_by_more_is_no(tmp_path, before, capsys, scale, limit, code):
    after = _folder(tmp_path / "after", scale=scale)
    assert main([before, after, f"max_increase={limit}"]) == code
    said = capsys.readouterr().out
    grown = f"{len(SPECS)} of {len(SPECS)} trials grew by more than 2 %"
    assert (grown in said) == (code == EXIT_ANSWER_IS_NO)
    assert said.count("\n| ") >= len(SPECS)  # one row per trial, in Markdown
    assert ("**" in said) == (code == EXIT_ANSWER_IS_NO)


def test_a_trial_without_an_answer_any_more_is_no(tmp_path, before, capsys):
    after = _folder(tmp_path / "after", status=Status.FAILED)
    assert main([before, after, "max_increase=50%"]) == EXIT_ANSWER_IS_NO
    assert "fits to failed" in capsys.readouterr().out


def test_nothing_in_common_is_no(tmp_path, capsys):
    one, other = _folder(tmp_path / "a", SPECS[:1]), _folder(tmp_path / "b", SPECS[1:2])
    assert main([one, other, "max_increase=2%"]) == EXIT_ANSWER_IS_NO
    assert "Only in a: 1 trials." in capsys.readouterr().out


def test_the_page_of_a_job_gets_the_same_text(tmp_path, before, monkeypatch, capsys):
    page = tmp_path / "summary.md"
    page.write_text("earlier\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    assert main([before, before, "max_increase=2%"]) == EXIT_OK
    assert page.read_text() == "earlier\n" + capsys.readouterr().out
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    assert main([before, before, "max_increase=2%"]) == ProfilerError.exit_code
    assert "could not be written" in capsys.readouterr().err


def test_a_folder_compared_with_itself_has_short_names(before, capsys):
    assert main([before, before, "max_increase=2%"]) == EXIT_OK
    assert "| trial | before (1) | before (2) | change |" in capsys.readouterr().out
