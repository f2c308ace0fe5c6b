"""The progress of a running sweep."""

import io
from dataclasses import replace

import builders
from rich.console import Console

from profiler.domain.outcome import Status
from profiler.rendering.progress import SweepProgress


def shown(records, **settings):
    sink = io.StringIO()
    with SweepProgress(total=len(records), console=Console(file=sink, width=80, **settings)) as progress:
        for record in records:
            progress.started(builders.planned(record))
        for record in records:
            progress.finished(builders.planned(record), record)
    return sink.getvalue()


def outcomes():
    ok, oom, failed = builders.records([builders.spec(), builders.spec(model="qwen2.5-14b"), builders.spec(seed=1)])
    failed = replace(failed, outcome=builders.failed(Status.TIMEOUT, "first\nno progress [for] 60 s"))
    return [ok, oom, failed]


def test_plain_lines_without_a_terminal():
    lines = shown(outcomes()).splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("[1/3] qwen2.5-0.5b, full + checkpointing, seed=0: 5.1 GiB simulated (22 s)")
    assert "out of memory in backward, needs " in lines[1]
    assert lines[2].endswith("timeout: no progress [for] 60 s")
    assert not any("\x1b" in line for line in lines)


def test_a_bar_with_the_running_trials_on_a_terminal():
    text = shown(outcomes(), force_terminal=True)
    assert "━" in text
    assert "3 trials: qwen2.5-0.5b, full" in text
    assert "[3/3]" in text


def test_the_time_left_is_shown():
    assert "left" in shown(outcomes())


def test_a_trial_on_the_cpu_says_so():
    record = builders.record(builders.spec(backend="cpu", gpu=None, model="tiny"), outcome=builders.on_cpu())
    assert shown([record]).strip() == "[1/1] tiny, full: ok on the CPU (4 s)"


def test_an_implied_trial_is_one_short_line():
    long = "Not run: qwen2.5-14b, full + checkpointing (trial 0123456789abcdef) ran out of memory. prune=false runs it."
    record = builders.record(builders.spec(), outcome=builders.failed(Status.IMPLIED, long))
    line = shown([record]).strip()
    assert "out of memory, implied by a smaller trial" in line
    assert len(line) < 80


def test_what_a_sweep_waits_for_is_one_line():
    sink = io.StringIO()
    with SweepProgress(total=1, console=Console(file=sink, width=40)) as progress:
        progress.waiting("Waiting for GPU [bold]: another sweep measures on it and holds /tmp/lock.")
    assert sink.getvalue() == "Waiting for GPU [bold]: another sweep measures on it and holds /tmp/lock.\n"
