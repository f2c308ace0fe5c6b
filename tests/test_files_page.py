"""`docs/files.md` has every file in the words of its docstring, and ARCHITECTURE.md leads to a file in two steps."""

import re
from pathlib import Path

import pytest

from maintenance.pages.files_page import PAGE, ROOT, files_page, main, undescribed

ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(r"^\| \*(.+)\* \| .*?`(profiler/[a-z_/]+/)` \| (.+) \|$", re.MULTILINE)
NAMED = re.compile(r"`([a-z_]+\.py)`(?: \(`([a-z_]+)`\))?")


def test_the_page_is_that_of_the_docstrings():
    assert (ROOT / PAGE).read_text(encoding="utf-8") == files_page(ROOT), "run python -m maintenance.pages.files_page"


def test_every_file_has_words_on_the_page():
    assert undescribed(ROOT) == []


def test_the_map_is_short():
    assert len(ARCHITECTURE.split()) <= 1500


def test_every_example_of_the_map_leads_to_a_file_in_two_steps():
    examples = EXAMPLE.findall(ARCHITECTURE)
    assert len(examples) == 3
    sections = sections_of((ROOT / PAGE).read_text(encoding="utf-8"))
    for _, folder, files in examples:
        named = NAMED.findall(files)
        assert named
        for name, word in named:
            assert f"| `{name}` |" in sections[folder]
            assert re.search(rf"\b{word}\b", (ROOT / folder / name).read_text(encoding="utf-8"))


def sections_of(page):
    return {part.partition("`")[0]: part for part in page.split("\n## `")[1:]}


@pytest.mark.parametrize(
    ("source", "left_out"), [('"""."""\n', ["profiler/one.py"]), ("", ["profiler/one.py"]), ('"""A row."""\n', [])]
)
def test_files_without_words_are_found(tmp_path, source, left_out):
    tree_with(tmp_path, "one.py", source)
    assert [str(path.relative_to(tmp_path)) for path in undescribed(tmp_path)] == left_out


def test_a_file_is_in_the_section_of_its_folder_with_its_first_paragraph(tmp_path):
    tree_with(tmp_path, "__init__.py", '"""The program.\n\nIts second paragraph.\n"""\n')
    tree_with(tmp_path, "inner/__init__.py", '"""A folder."""\n')
    tree_with(tmp_path, "inner/one.py", '"""One | row\nof two lines.\n\nMore.\n"""\n')
    sections = sections_of(files_page(tmp_path))
    assert "Its second paragraph." in sections["profiler/"]
    assert "one.py" not in sections["profiler/"]
    assert "A folder." in sections["profiler/inner/"]
    assert "| `one.py` | One \\| row of two lines. |" in re.sub(" +", " ", sections["profiler/inner/"])


def tree_with(root: Path, name: str, source: str) -> None:
    for top in ("profiler", "maintenance"):
        (root / top).mkdir(exist_ok=True)
    (root / "profiler" / name).parent.mkdir(exist_ok=True)
    (root / "profiler" / name).write_text(source)


def test_the_command_takes_no_words(capsys):
    assert main(["now"]) == 2
    assert "now=now: is unknown; the command takes no words." in capsys.readouterr().err
