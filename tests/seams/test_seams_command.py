"""`python -m profiler.seams`: a table, and an exit code that says whether something has moved."""

import logging
from collections.abc import Iterator

import pytest
from trl.kernels import chunked_logprob

from profiler.seams.main import main


@pytest.fixture(autouse=True)
def logging_restored() -> Iterator[None]:
    yield
    logging.disable(logging.NOTSET)


def test_everything_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    output = capsys.readouterr()
    assert "1.16.0" in output.out
    assert "never tested" not in output.out
    assert output.err == ""


def test_something_has_moved(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_logprob, "TOKEN_CHUNK_SIZE", 2048)
    assert main([]) == 3
    assert "trl.kernels.chunked_logprob.TOKEN_CHUNK_SIZE of trl 1.16.0 is 2048" in capsys.readouterr().err


def test_all_details(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["all=true"]) == 0
    output = capsys.readouterr().out
    (found,) = [each.splitlines() for each in output.split("\n\n") if "chunked_logprob._addmm_fp32\n" in each]
    assert found[0] == "trl.kernels.chunked_logprob._addmm_fp32"
    assert found[1].endswith("holds")
    assert found[2] == "  one cuBLAS call on CUDA, several operations elsewhere"
    assert found[3].startswith("  used by simulation/")


def test_all_details_say_what_has_moved(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_logprob, "TOKEN_CHUNK_SIZE", 2048)
    assert main(["all=true"]) == 3
    output = capsys.readouterr().out
    (found,) = [each for each in output.split("\n\n") if "chunked_logprob.TOKEN_CHUNK_SIZE\n" in each]
    assert "holds" not in found
    assert "2048" in found


def test_help_and_unknown_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "Exit code" in capsys.readouterr().out
    assert main(["all=yes"]) == 2
    assert "all=yes: must be true or false" in capsys.readouterr().err
