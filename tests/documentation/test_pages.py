"""The pages: each is in one part of the index, their links lead somewhere, and those written by hand stay short."""

import re
from pathlib import PurePosixPath

import pytest

from maintenance.manual.__main__ import main
from maintenance.manual.staging import INDEX, staged, target_of
from maintenance.pages.files_page import ROOT
from maintenance.pages.links import anchors_of, links_of, with_links
from maintenance.pages.reference_pages import REFERENCE_PAGES

DOCS = ROOT / "docs"
PARTS = ("Tutorials", "How-to", "Explanation", "Reference", "The project")
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in DOCS.rglob("*.md"))
LINKED = [*PAGES, *(path.name for path in ROOT.glob("*.md")), "llms.txt", "skills/grpo-vram/SKILL.md"]

BELOW_ANOTHER = ("docs/reference/commands/", "docs/reference/columns/", "docs/decisions/")
"""Folders whose pages commands.md, columns.md and the page of decisions list."""

EVIDENCE = {
    "docs/benchmark.md",
    "docs/campaign.md",
    "docs/claims.md",
    "docs/evidence.md",
    "docs/explanation/machines_tested.md",
    "docs/explanation/scripts_tried.md",
    "docs/surprises.md",
    "docs/trust.md",
}
"""Say what was compared, tried or fixed beforehand, with which result."""

MOST_WORDS = 14_000
"""Of the pages of docs/ that are written by hand and are neither evidence nor decisions."""

PATH = re.compile(r"(?<![\w/.-])docs/[\w/]+\.md(?:#[\w-]+)?")
MADE_UP = ("tests/documentation/", "CHANGELOG.md", "maintenance/planted_faults/")
"""Files that name pages which need not exist: of tests, of the past, or planted."""


def text_of(page):
    return (ROOT / page).read_text(encoding="utf-8")


def part_of(page):
    """The parts of the index that list a page."""
    parts = {part.partition("\n")[0]: part for part in text_of(INDEX).split("\n## ")[1:]}
    assert tuple(parts) == PARTS
    return [
        title
        for title, part in parts.items()
        for link in links_of(part)
        if target_of(ROOT, INDEX, link) == PurePosixPath(page)
    ]


@pytest.mark.parametrize("page", [page for page in PAGES if page != str(INDEX)])
def test_a_page_is_in_one_part_of_the_index(page):
    is_listed = page.startswith(BELOW_ANOTHER) and not page.endswith("README.md")
    assert len(part_of(page)) == (0 if is_listed else 1)


def test_all_reference_is_made_and_nothing_else_is():
    made = {page for page in PAGES if part_of(page) == ["Reference"]}
    assert made <= set(REFERENCE_PAGES)
    assert {page for page in REFERENCE_PAGES if not page.startswith(BELOW_ANOTHER)} == made


def words_of(text):
    """The words of a page, without what a program has printed."""
    return [word for word in re.sub(r"```text\n.*?```", "", text, flags=re.DOTALL).split() if re.search(r"\w", word)]


def by_hand():
    others = {*REFERENCE_PAGES, *EVIDENCE, "docs/files.md"}
    assert others <= set(PAGES)
    return [page for page in PAGES if page not in others and not page.startswith("docs/decisions/")]


def test_pages_written_by_hand_are_short():
    counts = {page: len(words_of(text_of(page))) for page in by_hand()}
    assert len(counts) >= 25
    assert sum(counts.values()) <= MOST_WORDS
    assert max(counts.values()) <= 1_000


@pytest.mark.parametrize(
    ("text", "count"), [("One, two - | three.", 3), ("a\n```text\nb c\n```\nd", 2), ("```sh\nb c\n```", 3)]
)
def test_words_are_counted_without_output(text, count):
    assert len(words_of(text)) == count


@pytest.mark.parametrize("page", LINKED)
def test_every_link_of_a_page_leads_somewhere(page):
    assert dead_links(page) == []


def dead_links(page):
    dead = []
    for link in links_of(text_of(page)):
        if link.is_of_others:
            continue
        target = (ROOT / page).parent / link.path if link.path else ROOT / page
        is_there = target.exists() and (
            not link.anchor or link.anchor in anchors_of(target.read_text(encoding="utf-8"))
        )
        dead += [] if is_there else [f"{link.path}#{link.anchor}"]
    return dead


WRITTEN = (
    "profiler",
    "grpo_vram",
    "maintenance",
    "tests",
    "docs",
    "scripts",
    "skills",
    "examples",
    "sweeps",
    "notebooks",
)
SUFFIXES = {".py", ".md", ".txt", ".yml", ".yaml", ".sh", ".toml", ".sbatch", ".ipynb", ".c", ".h", ""}


def written():
    """Files that may name a page: those of the folders that are written by hand, and of the root."""
    folders = [*(ROOT / name for name in WRITTEN), ROOT / ".github", ROOT / "results" / "reference"]
    found = [*ROOT.iterdir(), *(path for folder in folders for path in folder.rglob("*"))]
    return [path for path in found if path.is_file() and path.suffix in SUFFIXES and "__pycache__" not in path.parts]


def test_every_page_that_code_or_a_document_names_exists():
    named, missing = 0, []
    for path in written():
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(MADE_UP):
            continue
        for found in PATH.findall(path.read_text(encoding="utf-8", errors="replace")):
            named += 1
            page, _, anchor = found.partition("#")
            if not (ROOT / page).is_file() or (anchor and anchor not in anchors_of(text_of(page))):
                missing.append((name, found))
    assert named >= 150
    assert missing == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[a](b.md#c) ![d](e.png)", ["b.md#c", "e.png#"]),
        ("`[a](b.md)` and ``[a](`b.md)``", []),
        ("```sh\n[a](b.md)\n```\n[c](#d)", ["#d"]),
        ("[a [b] `c`](d/e.md)", ["d/e.md#"]),
    ],
)
def test_links_are_found_outside_of_code(text, found):
    assert [f"{link.path}#{link.anchor}" for link in links_of(text)] == found


def test_a_replaced_link_leaves_the_rest():
    text = "`[x](y)` [a `b`](c) [d](e)\n"
    assert with_links(text, lambda link: link.text if link.path == "c" else None) == "`[x](y)` a `b` [d](e)\n"


def test_anchors_are_those_of_github():
    page = "# A `b_c` & [D](e.md): 1\n```sh\n# no\n```\n## Two\n## Two\n## Two\n"
    assert anchors_of(page) == {"a-b_c--d-1", "two", "two-1", "two-2"}


@pytest.fixture
def repository(tmp_path):
    """A repository of three pages, of which one links a file, a folder and a report."""
    pages = {
        "docs/README.md": "# D\n\n## First\n\n- [O](one.md)\n\n## Second\n\n- [T](two.md)\n",
        "docs/one.md": "# O\n\n[folder](../code) [file](../code/a.py) [report](../results/r.md) [T](two.md)\n",
        "docs/two.md": "# T\n\n[other](https://example.org/a.md)\n",
        "results/r.md": "# R\n\n![f](f.png)\n",
        "results/f.png": "png",
        "code/a.py": "pass",
        "docs/alone.md": "# Not linked\n",
    }
    for name, text in pages.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_site_has_what_pages_of_the_index_link_to(repository):
    found = {name: content.decode() for name, content in staged(repository).items()}
    assert set(found) == {"docs/README.md", "docs/one.md", "docs/two.md", "results/r.md", "results/f.png", "code/a.py"}
    assert found["docs/README.md"].count("```{toctree}") == 2
    assert ":caption: First\n\n/docs/one\n```" in found["docs/README.md"]
    assert ":caption: Second\n\n/docs/two\n```" in found["docs/README.md"]
    assert "\n/results/r\n" in found["docs/one.md"]
    assert "/docs/two\n" not in found["docs/one.md"]
    assert found["docs/one.md"].startswith("# O\n\nfolder [file]")


def test_the_sources_are_written_anew(tmp_path, capsys):
    old = tmp_path / "sources" / "old.md"
    old.parent.mkdir()
    old.write_text("old")
    assert main([f"folder={tmp_path}"]) == 0
    assert not old.exists()
    assert (tmp_path / "sources" / INDEX).is_file()
    assert "files in" in capsys.readouterr().out
    assert main(["into=x"]) == 2
    assert main(["--help"]) == 0
