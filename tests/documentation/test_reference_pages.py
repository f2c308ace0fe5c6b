"""Each page of the reference is what the declarations say, and has everything that is declared."""

import re

import pytest

from maintenance.pages.files_page import ROOT
from maintenance.pages.members import marked, meanings_of, table_of
from maintenance.pages.reference_pages import REFERENCE_PAGES, main, reference_page
from profiler.commands import COMMANDS, options_of_command
from profiler.config.options.run_options import RUN_KEYS
from profiler.constraints.table import CONSTRAINTS
from profiler.domain import errors
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import Category, Phase
from profiler.domain.models.builtin_models import BUILTIN_MODELS, VISION_MODELS
from profiler.domain.trials.trial import SPEC_KEYS, Tuning
from profiler.storage.tables.schema import MONITORED_TABLES, OPTIONAL_TABLES, SCRIPT_TABLES, TABLES

FIRST_CELL = re.compile(r"^\| \[?`?([^`|\] ]+)", re.MULTILINE)
EVERY_TABLE = {**TABLES, **OPTIONAL_TABLES, **SCRIPT_TABLES, **MONITORED_TABLES}


def rows_of(path):
    return FIRST_CELL.findall((ROOT / path).read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", REFERENCE_PAGES)
def test_a_page_is_that_of_the_declarations(path):
    written = (ROOT / path).read_text(encoding="utf-8")
    assert written == reference_page(path), "run python -m maintenance.pages.reference_pages"


def test_no_page_is_left_that_nothing_makes():
    kept = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "reference").rglob("*.md")}
    assert kept <= set(REFERENCE_PAGES)


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("docs/keys.md", SPEC_KEYS),
        ("docs/run_options.md", RUN_KEYS),
        ("docs/commands.md", COMMANDS),
        ("docs/reference/cards.md", KNOWN_GPUS),
        ("docs/reference/models.md", [*BUILTIN_MODELS, *VISION_MODELS]),
        ("docs/reference/grids.md", [path.stem for path in (ROOT / "sweeps" / "grid").glob("*.yaml")]),
        ("docs/reference/glossary.md", [*Phase, *Category]),
        ("docs/columns.md", [f"{name}.parquet" for name in EVERY_TABLE]),
    ],
)
def test_a_page_has_a_row_for_everything_that_is_declared(path, names):
    assert len(names) >= 11
    assert set(names) <= set(rows_of(path))


@pytest.mark.parametrize("name", EVERY_TABLE)
def test_every_column_has_a_row_with_its_unit(name):
    page = (ROOT / "docs" / "reference" / "columns" / f"{name}.md").read_text(encoding="utf-8")
    columns = EVERY_TABLE[name]
    assert len(rows_of(f"docs/reference/columns/{name}.md")) == len(columns) + 2
    assert all(f"| `{column.name}` | {column.kind} | {column.unit} |" in page for column in columns)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "sweep"])
def test_every_option_of_a_command_has_a_row(name):
    assert set(options_of_command(name)) <= set(rows_of(f"docs/reference/commands/{name}.md"))


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_of_a_command_has_its_usage_and_every_example(name):
    page = (ROOT / "docs" / "reference" / "commands" / f"{name}.md").read_text(encoding="utf-8")
    kept = (ROOT / "tests" / "commands" / "help" / f"{name}.txt").read_text(encoding="utf-8")
    assert kept.splitlines()[0].removeprefix("Usage: ") in page
    examples = [line.strip() for line in kept.split("Examples:\n")[1].splitlines()]
    assert examples == page.split("```sh\n")[1].split("\n```")[0].splitlines()
    words = {word.strip("\\") for word in re.findall(r"\w+", page.replace("\\", ""))}
    paragraphs = [part for part in kept.split("\n\n") if not re.search(r"^ |^Examples|^Grids|\[default\]:", part)]
    said = {word for part in paragraphs for word in re.findall(r"\w+", part)}
    assert said - {"Usage", "docs"} <= words


def test_a_use_that_needs_more_than_its_command_has_its_needs():
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if line.startswith("| [monitor]"))
    needs = "`sweep` for `COMMAND` | Linux, macOS, Windows; `COMMAND` on Linux only |"
    assert row.endswith(needs)
    usage = (ROOT / "docs" / "reference" / "commands" / "monitor.md").read_text(encoding="utf-8")
    assert "Runs on Linux, macOS, Windows; `COMMAND` on Linux only." in usage
    assert "`simulate` for `backend=simulated`" in page
    assert page.count("`sweep` for `figure=PATH`") == 2


def test_a_place_in_an_option_stays_a_text():
    page = (ROOT / "docs" / "reference" / "commands" / "monitor.md").read_text(encoding="utf-8")
    assert r"FOLDER/monitor/&lt;name of the command&gt;/" in page
    assert "(key=value or --key value)" in page
    assert "python -m profiler.run ([monitor.md](../../monitor.md))." in page


def test_every_exit_code_is_declared():
    declared = {
        value for name, value in vars(errors).items() if re.fullmatch(r"_?EXIT_[A-Z_]+", name) and name != "EXIT_CODES"
    }
    assert declared == {each.code for each in errors.EXIT_CODES}


def test_every_refused_combination_has_its_sentence():
    page = (ROOT / "docs" / "reference" / "refused.md").read_text(encoding="utf-8")
    sentences = [each.problem for each in CONSTRAINTS if isinstance(each.problem, str)]
    assert len(sentences) >= 60
    assert [text for text in sentences if marked(re.sub(r"\{\w+\.(\w+)\}", r"{\1}", text)) not in page] == []


def test_the_meaning_of_a_member_is_its_docstring():
    assert meanings_of(Tuning) == {
        "full": "",
        "lora": "",
        "qlora": "LoRA over weights in 4 bits (nf4, double quantisation).",
    }
    assert "| `qlora` | LoRA over weights in 4 bits" in table_of(Tuning)


def test_code_in_a_text_stays_code():
    assert marked("a ``b_c`` d_e|`f|g`") == "a `b_c` d\\_e\\|`f\\|g`"


def test_the_command_takes_no_words(capsys):
    assert main(["now"]) == 2
    assert "now=now: is unknown; the command takes no words." in capsys.readouterr().err
