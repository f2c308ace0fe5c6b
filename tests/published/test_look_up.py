"""Look-ups in a small repository made by the test, and gradients of a small model."""

import subprocess
from pathlib import Path

import pytest

from maintenance.look_up import gradients, source_files
from profiler.domain.claims import Loss, SourceLook


@pytest.fixture(scope="module")
def git(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    (folder / "part").mkdir()
    (folder / "part" / "a.py").write_text("one\ntwo = 2\n")
    identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
    for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "first"], ["tag", "v1"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    (folder / "part" / "a.py").write_text("three\n")
    subprocess.run(["git", *identity, "commit", "-qam", "second"], cwd=folder, check=True)
    return folder / ".git"


def look(pattern: str, path: str = "part/*.py", version: str = "v1") -> SourceLook:
    return SourceLook(repository="o/r", version=version, path=path, pattern=pattern)


def test_a_pattern_is_found_with_its_line_in_the_stated_version(git: Path) -> None:
    assert source_files.look(git, look("^two = 2$")) == (True, "part/a.py, line 2")
    assert source_files.look(git, look("three")) == (False, "nowhere in 1 file (part/*.py)")
    assert source_files.look(git, look("three", version="HEAD")) == (True, "part/a.py, line 1")


@pytest.mark.parametrize(("path", "version"), [("nosuch.py", "v1"), ("part/*.py", "v2")])
def test_a_missing_file_or_version_is_no_answer(git: Path, path: str, version: str) -> None:
    with pytest.raises(LookupError, match=r".+"):
        source_files.look(git, look("x", path, version))


@pytest.mark.parametrize(
    ("loss", "is_equal"), [(Loss.PER_COMPLETION, True), (Loss.PER_TOKEN, False), (Loss.PER_TOKEN_OF_BATCH, True)]
)
def test_two_micro_batches_have_the_gradient_of_one_unless_their_tokens_are_averaged(
    loss: Loss, is_equal: bool
) -> None:
    assert gradients.look(loss)[0] is is_equal
