"""What coding assistants read: every command of the skill runs, and `llms.txt` names every page."""

import pickle
import re
import shlex
from pathlib import Path

import pytest
import yaml
from own_histories import ALLOC, MIB, recorded

from profiler.commands import COMMANDS as COMMANDS_OF_THE_PROGRAM
from profiler.console import main
from profiler.domain.errors import EXIT_OK

ROOT = Path(__file__).parents[1]
SKILL = ROOT / "skills" / "grpo-vram" / "SKILL.md"
LLMS = ROOT / "llms.txt"
COMMANDS = [
    line for block in re.findall(r"```sh\n(.*?)```", SKILL.read_text(), re.DOTALL) for line in block.splitlines()
]
LOG = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB "
    "of which 1.20 GiB is free. Including non-PyTorch memory, this process has 22.43 GiB memory in use. Of the "
    "allocated memory 20.11 GiB is allocated by PyTorch, and 1.90 GiB is reserved by PyTorch but unallocated."
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the files that the skill names."""
    (tmp_path / "grpo.yaml").write_text("model_name_or_path: Qwen/Qwen2.5-7B\nuse_peft: true\nnum_generations: 8\n")
    (tmp_path / "train.log").write_text(LOG)
    (tmp_path / "run.pickle").write_bytes(pickle.dumps(recorded([(ALLOC, 5 * MIB, 0)]).snapshot()))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_of_the_skill_answers(line, capsys):
    program, *words = shlex.split(line)
    assert program == "grpo-vram"
    assert main(words) == EXIT_OK
    out, err = capsys.readouterr()
    assert out.strip()
    assert err == ""


def test_the_skill_has_the_form_that_assistants_read():
    text = SKILL.read_text()
    _, front, body = text.split("---\n", 2)
    found = yaml.safe_load(front)
    assert set(found) == {"name", "description"}
    assert found["name"] == SKILL.parent.name
    assert re.fullmatch(r"[a-z0-9-]{1,64}", found["name"])
    assert len(found["description"]) <= 1024
    assert len(text.splitlines()) <= 80
    assert {line.split()[1] for line in COMMANDS} >= {"estimate", "solve", "advise", "replay"}
    assert all((ROOT / name).is_file() for name in re.findall(r"`(docs/[\w/]+\.md)`", body))


def test_llms_txt_names_every_page_once():
    named = re.findall(r"\]\(([^)]+)\)", LLMS.read_text())
    assert [name for name in named if not (ROOT / name).is_file()] == []
    assert len(named) == len(set(named))
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    below_another = ("docs/decisions/", "docs/reference/columns/")
    named_here = {page for page in pages if not page.startswith(below_another)} | {"docs/decisions/README.md"}
    assert named_here - set(named) == set()
    assert {f"docs/reference/commands/{name}.md" for name in COMMANDS_OF_THE_PROGRAM} <= set(named)
