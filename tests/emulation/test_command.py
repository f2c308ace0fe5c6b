"""`python -m profiler.emulation`: its command line, and what it says."""

from pathlib import Path, PurePath

import pytest

from profiler.domain.errors import EXIT_OK, EXIT_USAGE
from profiler.emulation import main as entry
from profiler.emulation.launch import Check, EmulatedPython
from profiler.emulation.main import EmulationOptions, read_command

PYTHON = EmulatedPython(executable=Path("/env/python"), torch="2.13.0+cu130", cuda="13.0", libraries=Path("/cache/x"))


def test_keys_are_read():
    found = read_command(["check", "gpu=t4-16gb", "strict=false", "python=/bin/sh"])
    assert found.action == "check"
    assert found.options == EmulationOptions(gpu="t4-16gb", strict=False, python=PurePath("/bin/sh"))
    assert found.faults == ()
    assert read_command(["install", "torch=2.11.0"]).options.torch == "2.11.0"


@pytest.mark.parametrize("name", ["4090", "RTX 4090", "rtx4090", "rtx-4090-24gb"])
def test_a_card_is_named_as_in_an_estimate(name):
    found = read_command(["check", f"gpu={name}"])
    assert (found.options.gpu, found.faults) == ("rtx-4090-24gb", ())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["instal"], "command=instal: must be one of install, check. Did you mean 'install'?"),
        (["check", "gpu=h100-80g"], "Did you mean 'h100-80gb'?"),
        (["check", "gpu=a100"], "gpu=a100: is one of several cards: a100-40gb, a100-80gb. Name one of them."),
        (["check", "gpu=24GiB"], "gpu=24GiB: is a size, and only an estimate takes a card of any size. Name a card"),
        (["check", "requirements=/bin/sh"], "requirements=/bin/sh: is unknown; the keys are python, gpu, strict."),
        (["check", "torch=2.13.0"], "torch=2.13.0: is unknown; the keys are python, gpu, strict."),
        (["check", "strict=no"], "strict=no: must be true or false."),
        (["check", "python=/none"], "python=/none: must be a file that can be run. Give the interpreter"),
        (["check", "python=/"], "python=/: must be a file that can be run. Give the interpreter"),
        (["install", "torch=2.13"], "torch=2.13: must be a version such as 2.13.0."),
        (["install", "--force"], "argument=--force: is not of the form key=value."),
    ],
)
def test_wrong_input_is_one_sentence_each_and_starts_nothing(capsys, words, sentence):
    assert entry.main(words) == EXIT_USAGE
    shown = capsys.readouterr()
    assert shown.out == ""
    assert sentence in shown.err
    assert shown.err.count("\n") == 1


def test_every_fault_is_reported(capsys):
    assert entry.main(["check", "gpu=x", "strict=y"]) == EXIT_USAGE
    assert capsys.readouterr().err.count("\n") == 2


@pytest.mark.parametrize("words", [["--help"], ["install", "-h"]])
def test_help_is_shown(capsys, words):
    assert entry.main(words) == EXIT_OK
    assert "Examples:" in capsys.readouterr().out


def test_install_makes_the_environment_first_and_then_checks_it(capsys, monkeypatch):
    asked = []
    monkeypatch.setattr(
        entry, "install", lambda contents, base, announce: asked.append((contents.torch, base)) or Path("/env/python")
    )
    monkeypatch.setattr(entry, "emulated_python", lambda executable, strict: asked.append(executable) or PYTHON)
    result = Check(card="NVIDIA T4", memory_bytes=2**34, allocated_bytes=2**20, reserved_bytes=2**21, values="complete")
    monkeypatch.setattr(entry, "check", lambda python, gpu, strict: asked.append(gpu.name) or result)
    assert entry.main(["install", "torch=2.13.0"]) == EXIT_OK
    assert asked == [("2.13.0", None), Path("/env/python"), "h100-80gb"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("NVIDIA T4 (emulated), 16.00 GiB: a small program allocated 1.0 MiB")
