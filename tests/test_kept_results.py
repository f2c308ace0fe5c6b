"""Kept results are in `results/reference/`, and hold no page that a command can draw again."""

import getpass
import re
import socket
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import Image

from profiler.report.main import main as report

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "results" / "reference"
PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *REFERENCE.glob("*/*.md"),
]
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
SHOWN = re.compile(r"!\[[^\]]*\]\(([^)#:\s]+)\)")
HOME_FOLDER = re.compile(r"/(home|Users)/\w|/root\b|[A-Z]:\\+Users\\")


def git(*words: str) -> subprocess.CompletedProcess[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout")
    return subprocess.run(["git", *words], cwd=ROOT, check=False, capture_output=True, text=True)


def ignored(path: str) -> bool:
    return git("check-ignore", "--no-index", "--quiet", path).returncode == 0


def kept_files() -> list[Path]:
    return [ROOT / name for name in git("ls-files", "results").stdout.splitlines() if (ROOT / name).exists()]


def text_of(path: Path) -> str:
    """Everything in a kept file that could be text, metadata included."""
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        metadata = pq.read_metadata(path)
        words = [str(metadata.created_by), str(metadata.metadata), *map(str, (table.schema.metadata or {}).items())]
        return "\n".join([*words, table.to_pandas().to_csv()])
    if path.suffix == ".png":
        # Compressed pixels contain any short sequence of letters by chance.
        with Image.open(path) as image:
            return str(image.info)
    return path.read_bytes().decode("latin-1")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_pages_lead_to_files_in_git(page):
    targets = [(page.parent / link).resolve() for link in LINK.findall(page.read_text(encoding="utf-8"))]
    assert [str(target) for target in targets if not target.exists()] == []
    assert [str(target) for target in targets if target.is_file() and ignored(str(target.relative_to(ROOT)))] == []


def test_git_ignores_results_of_sweeps_and_keeps_the_reference():
    assert ignored("results/lora_vs_full/runs.parquet")
    assert ignored("results/accuracy/rows.parquet")
    assert not ignored("results/reference/lora_vs_full/runs.parquet")
    assert not ignored("results/reference/lora_vs_full/report.md")
    assert not ignored("results/reference/accuracy/rows.parquet")
    assert ignored("results/reference/lora_vs_full/report.html")
    assert ignored("results/reference/lora_vs_full/records/0123456789abcdef.json")
    assert ignored("results/reference/campaign/a/lora_vs_full/samples/0123456789abcdef.parquet")


def test_no_page_is_kept_that_a_command_draws_again():
    kept = kept_files()
    assert kept
    assert {path.suffix for path in kept} <= {".parquet", ".md", ".png", ".svg", ".csv", ".jsonl"}
    assert [path for path in kept if path.name == "comparison.csv"] == []


def test_every_kept_figure_is_shown_by_a_document_and_kept_in_one_format():
    shown = {
        (page.parent / link).resolve() for page in PAGES for link in SHOWN.findall(page.read_text(encoding="utf-8"))
    }
    figures = [path for path in kept_files() if path.suffix in (".png", ".svg")]
    assert figures
    assert [str(path) for path in figures if path not in shown] == []
    assert len({path.with_suffix("") for path in figures}) == len(figures)


def test_the_kept_results_stay_small_enough_for_a_clone():
    assert sum(path.stat().st_size for path in kept_files()) <= 12e6


def test_no_kept_file_names_a_user_a_home_folder_or_a_machine():
    names = "|".join(re.escape(name) for name in (socket.gethostname(), getpass.getuser()))
    private = re.compile(rf"{HOME_FOLDER.pattern}|{re.escape(str(ROOT))}|[/@]({names})\b|\b({names})@")
    found = {}
    for path in kept_files():
        match = private.search(text_of(path))
        if match:
            found[str(path.relative_to(ROOT))] = match.group(0)
    assert found == {}


@pytest.mark.parametrize("text", ["/home/jane/x", "/Users/jane", "/root/.cache", "C:\\Users\\jane"])
def test_the_check_for_home_folders_finds_them(text):
    assert HOME_FOLDER.search(text)


def test_a_missing_sweep_that_is_kept_is_named_in_the_message(tmp_path, capsys):
    kept = tmp_path / "results" / "reference" / "lora_vs_full"
    kept.mkdir(parents=True)
    (kept / "runs.parquet").touch()
    assert report([str(tmp_path / "results" / "lora_vs_full")]) == 2
    message = capsys.readouterr().err
    assert "no such folder. Run the sweep first (python -m profiler.sweep +grid=lora_vs_full)" in message
    assert f"draw the kept results: {kept}." in message
