"""Every bad input ends with its exit code and one sentence per fault: no traceback, no hang, no silence."""

import errno
import os
from collections.abc import Callable, Sequence

import estimate_cases
import monitor_cases
import other_cases
import pytest
import replay_cases
import run_cases
import sweep_cases
from cases import Case
from sweep_fakes import FakeWorld
from time_limit import time_limit

from maintenance.accuracy.main import main as accuracy
from maintenance.campaign.main import main as campaign
from profiler.advise.main import main as advise
from profiler.console import main as console
from profiler.emulation.main import main as emulation
from profiler.estimate.main import main as estimate
from profiler.forecast.main import main as forecast
from profiler.monitor.main import main as monitor
from profiler.replay.main import main as replay
from profiler.report.main import main as report
from profiler.run.main import main as run_script
from profiler.seams.main import main as seams
from profiler.share.main import main as share
from profiler.solve.main import main as solve
from profiler.sweep.main import main as run_sweep

LIMIT_S = 10
"""No bad input takes more time of the processor."""

Main = Callable[[Sequence[str]], int]


def sweep(words: Sequence[str]) -> int:
    """A sweep whose trials are fakes."""
    world = FakeWorld()
    code = run_sweep(words, parts=world.parts())
    assert code == 0 or not world.runs, "wrong input has run trials"
    return code


CORPUS: tuple[tuple[Main, Sequence[Case]], ...] = (
    (estimate, estimate_cases.CASES),
    (estimate, other_cases.FAIL_IF),
    (sweep, sweep_cases.CASES),
    (replay, replay_cases.CASES),
    (run_script, run_cases.CASES),
    (monitor, monitor_cases.CASES),
    (report, other_cases.REPORT),
    (report, other_cases.REPORT_GUARD),
    (seams, other_cases.SEAMS),
    (solve, other_cases.SOLVE),
    (advise, other_cases.ADVISE),
    (forecast, other_cases.FORECAST),
    (share, other_cases.SHARE),
    (emulation, other_cases.EMULATION),
    (console, other_cases.CONSOLE),
    (campaign, other_cases.CAMPAIGN),
    (accuracy, other_cases.ACCURACY),
)

ALL = [(main, case) for main, cases in CORPUS for case in cases]


@pytest.fixture(autouse=True)
def _limit():
    with time_limit(LIMIT_S):
        yield


def test_the_corpus_is_large():
    assert len(ALL) >= 300


@pytest.mark.parametrize(("main", "case"), ALL, ids=[f"{main.__module__}-{n}" for n, (main, _) in enumerate(ALL)])
def test_a_bad_input_is_one_sentence_per_fault(main, case, tmp_path, monkeypatch, capsys):
    case.prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    code = main(list(case.words))
    lines = capsys.readouterr().err.splitlines()
    assert code == case.code, lines
    assert len(lines) == case.sentences, lines
    assert all(line.isprintable() and len(line) < 5000 for line in lines)
    assert case.says or not case.sentences
    for text in case.texts():
        assert text in "\n".join(lines)


def in_a_closed_folder(main: Main, *words: str) -> tuple[Main, tuple[str, ...]]:
    """A command that names something in a folder that may not be entered."""
    return main, words


@pytest.mark.parametrize(
    ("main", "words"),
    [
        in_a_closed_folder(estimate, "model=closed/config.json"),
        in_a_closed_folder(estimate, "config=closed/f.yaml"),
        in_a_closed_folder(sweep, "+grid=logprobs", "results_dir=closed/x"),
        in_a_closed_folder(sweep, "+grid=logprobs", "dataset=closed/x.jsonl"),
        in_a_closed_folder(sweep, "-cd", "closed/x", "+grid=logprobs"),
        in_a_closed_folder(replay, "closed/f.pickle"),
        in_a_closed_folder(report, "closed/x"),
        in_a_closed_folder(campaign, "thresholds", "closed/x"),
        in_a_closed_folder(accuracy, "results_dir=closed/x", "simulate=false", "count=1"),
    ],
)
def test_a_folder_that_may_not_be_entered_is_one_sentence(main, words, tmp_path, monkeypatch, capsys):
    """Root may enter every folder, so that the kernel's answer is imitated."""
    stat, open_file = os.stat, os.open

    def refusing(call):
        def refuse(path, *args, **how):
            if "closed" in str(path):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return call(path, *args, **how)

        return refuse

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "stat", refusing(stat))
    monkeypatch.setattr(os, "open", refusing(open_file))
    code = main(list(words))
    lines = capsys.readouterr().err.splitlines()
    assert code == 2
    assert len(lines) == 1
    assert "Permission denied" in lines[0]
