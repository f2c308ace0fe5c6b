"""Every command of a tutorial runs, on the files that the page shows, and prints what the page shows."""

import pickle
import re
import shlex
from pathlib import Path

import pytest
from own_histories import ALLOC, MIB, recorded

from maintenance.pages.files_page import ROOT
from profiler.console import main
from profiler.domain.errors import EXIT_OK, EXIT_USAGE

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\S+\.\w+)\n")
LEFT_OUT = "..."
OF_THE_SHELL = ("make install", "source .venv/bin/activate")
"""Lines that install."""

MEASURES = "grpo-vram sweep +grid=lora_vs_full model=qwen2.5-0.5b breakdown=true"
"""Takes minutes: here its trials are listed, and the sweep of another tutorial runs."""


def blocks(page):
    return [(match["language"], match["text"]) for match in BLOCK.finditer(page.read_text(encoding="utf-8"))]


def commands(page):
    """Each command with the output that the page shows of it: the texts that follow it, before the next command."""
    found = []
    for language, text in blocks(page):
        if language == "sh":
            found += [(line, []) for line in text.splitlines()]
        elif language == "text" and not FILE.match(text):
            found[-1][1].append(text)
    return found


STEPS = [(page, line, tuple(shown)) for page in TUTORIALS for line, shown in commands(page) if line not in OF_THE_SHELL]


@pytest.fixture
def folder(tmp_path, monkeypatch, request):
    """The files that a page shows, and those that a reader has: a script, a snapshot, kept results, and a recipe."""
    for language, text in blocks(request.getfixturevalue("page")):
        if (named := FILE.match(text)) and language in ("yaml", "text"):
            (tmp_path / named[1]).write_text(text[named.end() :])
    if not (tmp_path / "grpo.yaml").exists():
        (tmp_path / "grpo.yaml").write_text("model_name_or_path: Qwen/Qwen2.5-0.5B\ndtype: bfloat16\n")
    (tmp_path / "train.py").write_text("print('trained')\n")
    (tmp_path / "run.pickle").write_bytes(pickle.dumps(recorded([(ALLOC, 5 * MIB, 0)]).snapshot()))
    for name in ("results/reference/lora_vs_full", "results/lora_vs_full"):
        (tmp_path / name).mkdir(parents=True)
        for table in (ROOT / "results" / "reference" / "lora_vs_full").glob("*.parquet"):
            (tmp_path / name / table.name).write_bytes(table.read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def is_slow(line):
    """Whether a command starts another Python."""
    return "model=tiny" in line or line.endswith("train.py")


QUICK = [step for step in STEPS if not is_slow(step[1])]
SLOW = [step for step in STEPS if is_slow(step[1])]


def name_of(value):
    return value.stem if isinstance(value, Path) else None


def test_there_are_three_tutorials_with_commands():
    assert [page.stem for page in TUTORIALS] == ["out_of_memory", "real_card", "will_it_fit"]
    assert all(len(commands(page)) >= 5 for page in TUTORIALS)
    names = {line.split()[1] for _, line, _ in STEPS}
    assert names >= {"estimate", "solve", "advise", "sweep", "replay", "report", "monitor", "run"}
    assert len(SLOW) == 3


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("page", "line", "shown"), QUICK, ids=name_of)
def test_a_command_of_a_tutorial_runs_and_prints_what_is_shown(page, line, shown, capsys):
    program, *words = shlex.split(line)
    assert program == "grpo-vram"
    if line == MEASURES:
        words.append("dry_run=true")
    # Without a driver the GPUs cannot be shown, as the page says.
    assert main(words) in ((EXIT_OK, EXIT_USAGE) if words == ["monitor"] else (EXIT_OK,))
    out, err = capsys.readouterr()
    assert err == "" or words == ["monitor"]
    for text in shown:
        assert missing(text, out) == []


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("page", "line", "shown"), SLOW, ids=name_of)
def test_a_tutorial_command_with_processes_leaves_a_report(page, line, shown, folder):
    assert main(shlex.split(line)[1:]) == EXIT_OK
    assert shown == ()
    written = sorted((folder / "results").rglob("report.html"))
    assert [path.relative_to(folder / "results").parts[0] for path in written] != []


def missing(text, out):
    """The parts of a shown output, between lines of dots, that were not printed in this order."""
    found, rest = [], out
    for part in re.split(rf"^{re.escape(LEFT_OUT)}\n", text, flags=re.MULTILINE):
        _, part_found, after = rest.partition(part)
        rest = after if part_found else rest
        found += [] if part_found else [part]
    return found


@pytest.mark.parametrize(
    ("text", "count"), [("a\nb\n", 0), ("a\n...\nc\n", 0), ("c\n...\na\n", 1), ("a\nc\n", 1), ("d\n", 1)]
)
def test_what_was_not_printed_is_found(text, count):
    assert len(missing(text, "a\nb\nc\n")) == count


def test_lines_of_the_shell_are_those_of_the_makefile():
    lines = [line for page in TUTORIALS for line, _ in commands(page) if line in OF_THE_SHELL]
    assert set(lines) == set(OF_THE_SHELL)
    assert "\ninstall: " in (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("page", TUTORIALS[:1])
def test_a_command_of_a_tutorial_without_its_file_ends_with_2(page, folder, capsys):
    (folder / "grpo.yaml").unlink()
    line = next(line for line, _ in commands(page) if "config=grpo.yaml" in line)
    assert main(shlex.split(line)[1:]) == EXIT_USAGE
    assert "grpo.yaml" in capsys.readouterr().err
