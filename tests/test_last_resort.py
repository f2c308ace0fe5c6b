"""Every command ends with one sentence per fault and an exit code of docs/exit_codes.md."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

import pytest

from profiler.command_line import Interrupted, as_command, interruptible
from profiler.domain import errors
from profiler.storage.files.atomic import UnforeseenError, last_resort

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "exit_codes.md"


def unforeseen(*_positional: object, **_how: object) -> None:
    raise LookupError("this was\nunforeseen")


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "broken", "words"),
    [
        ("sweep", "profiler.sweep.main.prepare_each", ["+grid=lora_vs_full"]),
        ("report", "profiler.report.main.named_folders", ["."]),
        ("estimate", "profiler.estimate.main._answered", ["model=tiny"]),
        ("replay", "profiler.replay.main._replay", ["."]),
        ("accuracy", "maintenance.accuracy.main._settings", ["limit=1"]),
        ("campaign", "maintenance.campaign.main._lines", ["list"]),
    ],
)
def test_an_unforeseen_error_is_one_sentence_with_a_file_and_70(name, broken, words, temporary, monkeypatch, capsys):
    # Not by its dotted name, because `profiler.sweep.main` is also a function.
    module, _, function = broken.rpartition(".")
    monkeypatch.setattr(import_module(module), function, unforeseen)
    assert import_module(module).main(words) == 70

    (file,) = temporary.glob(f"{name}-error-*.txt")
    captured = capsys.readouterr()
    assert captured.err == (
        f"Unforeseen LookupError: this was. The full text is in {file}. Please report it with that file.\n"
    )
    assert "Traceback" in file.read_text()
    assert "unforeseen" in file.read_text()


def test_a_folder_that_cannot_hold_the_file_is_replaced_by_the_temporary_folder(temporary):
    said = f"The full text is in {temporary}"
    with pytest.raises(UnforeseenError, match=said), last_resort("sweep", folder=Path("/proc/none")):
        unforeseen()


def test_if_no_file_can_be_written_the_text_is_in_the_sentence():
    said = r"could not be written[^\n]*\n(.*\n)*LookupError: this was"
    with pytest.raises(UnforeseenError, match=said), last_resort("worker", file=Path("/proc/none/file")):
        unforeseen()


_WAITING = """
import sys, time
from profiler.command_line import Interrupted, as_command, interruptible

@as_command("an example", when_interrupted="More.")
def main():
    print("on", flush=True)
    time.sleep(600)
    return 0

sys.exit(main())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_any_command_with_128_and_its_number(number):
    with subprocess.Popen(
        [sys.executable, "-c", _WAITING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"
        process.send_signal(number)
        _, said = process.communicate()
    assert process.returncode == 128 + number
    assert said == ("Interrupted. More.\n" if number is signal.SIGINT else f"Interrupted by {number.name}. More.\n")


def test_signal_handlers_are_restored():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]

    @as_command("an example")
    def main() -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return 0

    assert main() == 143
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_the_page_has_every_exit_code_once():
    codes = [int(code) for code in re.findall(r"^\| (\d+) \|", PAGE.read_text(), re.MULTILINE)]
    ours = {value for name, value in vars(errors).items() if name.startswith("EXIT_") and isinstance(value, int)} - {
        errors.EXIT_SIGNAL_BASE
    }
    assert len(codes) == len(set(codes))
    assert {*ours, errors.ProfilerError.exit_code} == set(codes)
    assert "| 128 + n |" in PAGE.read_text()


class Finalized:
    """Gets SIGINT while it is deleted, and ends only after its handler ran."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass


def test_a_signal_within_a_finalizer_ends_the_command(capsys):
    """Python prints what is raised in `__del__`, and goes on."""
    with pytest.raises(Interrupted), interruptible():
        Finalized()
        time.sleep(60)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("wrapped", [False, True], ids=["its own error", "a fault made of it"])
def test_an_error_that_a_signal_causes_in_a_library_does_not_hide_the_signal(wrapped, temporary, capsys):
    """As OmegaConf, of which a signal at a wrong instant leaves a half-built value that its clean-up trips over."""

    def library() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            raise AttributeError("half-built")

    @as_command("an example")
    def main() -> int:
        try:
            library()
        except AttributeError as error:
            if wrapped:
                raise errors.UsageError([errors.Fault(key="grid", found="x", problem="cannot be read")]) from error
            raise
        return 0

    assert main() == 143
    assert capsys.readouterr().err == "Interrupted by SIGTERM.\n"
    assert list(temporary.iterdir()) == []


def test_a_further_error_after_a_signal_is_reported_as_one(temporary):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
    except KeyboardInterrupt:
        with pytest.raises(UnforeseenError, match="Unforeseen LookupError"), last_resort("sweep", folder=temporary):
            unforeseen()


INTERRUPTS = """
import importlib.abc, os, signal, sys
class Interrupts(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["AT"]: os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
"""


@pytest.mark.parametrize("at", ["profiler.command_line", "profiler.domain.trials"])
@pytest.mark.parametrize("name", ["profiler", "profiler.run", "profiler.estimate", "grpo_vram"])
def test_a_command_that_still_imports_ends_with_a_sentence(tmp_path, name, at):
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTS)
    variables = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "AT": at}
    done = subprocess.run([sys.executable, "-m", name, "--help"], env=variables, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Interrupted.\n")


def test_a_program_that_imports_the_package_keeps_its_signals():
    ask = "import signal; kept = signal.getsignal(2); import profiler; print(signal.getsignal(2) == kept)"
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    for words in (["-c", ask], ["-c", ask, "-m", "profiler.run"]):
        done = subprocess.run([sys.executable, *words], env=variables, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "True\n")
