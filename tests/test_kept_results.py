"""Kept results are in `results/reference/`, apart from those of whoever runs a sweep."""

import re
import subprocess
from pathlib import Path

import pytest

from profiler.report import main as report

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "results" / "reference").glob("*/*.md")]
_LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def ignored(path: str) -> bool:
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout")
    done = subprocess.run(["git", "check-ignore", "--no-index", "--quiet", path], cwd=ROOT, check=False)
    return done.returncode == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_pages_lead_to_files(page):
    links = _LINK.findall(page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_git_ignores_results_of_sweeps_and_keeps_the_reference():
    assert ignored("results/lora_vs_full/runs.parquet")
    assert ignored("results/accuracy/rows.parquet")
    assert not ignored("results/reference/lora_vs_full/runs.parquet")
    assert not ignored("results/reference/accuracy/rows.parquet")
    assert ignored("results/reference/lora_vs_full/records/0123456789abcdef.json")
    assert ignored("results/reference/campaign/a/lora_vs_full/samples/0123456789abcdef.parquet")


def test_a_sweep_that_was_not_run_here_is_said_to_be_kept(tmp_path, capsys):
    kept = tmp_path / "results" / "reference" / "lora_vs_full"
    kept.mkdir(parents=True)
    (kept / "runs.parquet").touch()
    assert report([str(tmp_path / "results" / "lora_vs_full")]) == 2
    message = capsys.readouterr().err
    assert "no such folder. Run the sweep first (python -m profiler.sweep +grid=lora_vs_full)" in message
    assert f"draw the kept results: {kept}." in message
