"""Foreign text in a terminal: messages of workers, names, and files of others cannot control it."""

import io
import pickle
import re
import sys
from dataclasses import replace

import builders
import pytest

from profiler.analysis.times.sweep_time import SweepTally
from profiler.command_line import as_command, print_line
from profiler.domain.errors import Fault, UsageError
from profiler.domain.text import plain
from profiler.estimate.main import main as estimate
from profiler.rendering.layouts.terminal import TerminalConsole
from profiler.rendering.live.progress import SweepProgress
from profiler.replay.main import main as replay
from profiler.report import main as report

HOSTILE = "\x1b]0;title\x9c\x1b[2J\x9b31m\u202e"
SHOWN = r"\x1b]0;title\x9c\x1b[2J\x9b31m\u202e"


def has_only_styles(text: str) -> bool:
    """Whether a text has no control characters except those with which rich colours text and draws its bar."""
    left = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    return not set(left.replace("\r", "")) & set("\x1b\x9b\x9c\u202e")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("two\nlines\tand a tab, naïve 模型 ~", "two\nlines\tand a tab, naïve 模型 ~"),
        (HOSTILE, SHOWN),
        ("100 %\rfake", r"100 %\rfake"),
        ("\udc80", r"\udc80"),
        ("\x7f\x00", r"\x7f\x00"),
    ],
)
def test_only_what_a_terminal_interprets_is_escaped(text, shown):
    assert plain(text) == shown
    assert plain(shown) == shown


def test_lines_and_sentences_of_faults(capsys):
    @as_command("command")
    def command() -> int:
        print_line(HOSTILE)
        raise UsageError([Fault(key="model", found=HOSTILE, problem="is unknown")])

    assert command() == 2
    assert capsys.readouterr() == (f"{SHOWN}\n", f"model={SHOWN}: is unknown.\n")


def test_a_word_of_the_command_line(capsys):
    assert estimate([f"model={HOSTILE}"]) == 2
    assert f"model={SHOWN}: " in capsys.readouterr().err


def test_a_snapshot_of_somebody_else(tmp_path, capsys):
    path = tmp_path / f"{HOSTILE}.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[]]}))
    assert replay([str(path)]) == 0
    assert capsys.readouterr().out.startswith(f"{SHOWN}.pickle: ")
    path.write_bytes(b"")
    assert replay([str(path)]) == 2
    assert f"{SHOWN}.pickle: " in capsys.readouterr().err


class Terminal(io.StringIO):
    """A terminal with colours."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def on_terminal(monkeypatch):
    """Return a function that makes standard output a terminal."""

    def start() -> Terminal:
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setattr(sys, "stdout", Terminal())
        return sys.stdout

    return start


def hostile():
    first, second = builders.records([builders.spec(), builders.spec(seed=1)])
    return [first, replace(second, outcome=builders.failed(message=f"Traceback\nValueError: {HOSTILE}"))]


def test_the_table_of_a_report(tmp_path, on_terminal):
    terminal = on_terminal()
    folder = builders.write_folder(tmp_path / "made_up", hostile(), command=f"run {HOSTILE}")
    assert report.main([str(folder)]) == 0
    assert "\x1b[1m" in terminal.getvalue()  # rich's own
    assert SHOWN in terminal.getvalue().replace("\n", "")
    assert has_only_styles(terminal.getvalue())
    assert "\x1b" not in (folder / "report.md").read_text()


def test_the_progress_of_a_sweep(on_terminal):
    terminal = on_terminal()
    with SweepProgress(
        SweepTally([builders.planned(record) for record in hostile()]), console=TerminalConsole()
    ) as progress:
        for record in hostile():
            trial = replace(builders.planned(record), label=HOSTILE)
            progress.started(trial)
            progress.finished(trial, record)
        progress.waiting(HOSTILE)
    assert "\x1b[?25l" in terminal.getvalue()  # rich hides the cursor
    assert terminal.getvalue().count(SHOWN) >= 4
    assert has_only_styles(terminal.getvalue())
