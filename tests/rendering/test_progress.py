"""The progress of a running sweep."""

import io
import re
import time
from dataclasses import replace

import builders
from rich.console import Console

from profiler.analysis.times.sweep_time import SweepTally
from profiler.domain.machines.engines import Machines, Money, SweepState
from profiler.domain.runs.outcome import Status
from profiler.domain.trials.trial import Backend
from profiler.rendering.live.progress import SweepProgress, state_line


def shown(records, **settings):
    sink = io.StringIO()
    tally = SweepTally([builders.planned(record) for record in records])
    with SweepProgress(tally, console=Console(file=sink, width=120, **settings)) as progress:
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
    assert "3 running · 0 waiting · 1 of 1 node busy · qwen2.5-0.5b, full" in text
    assert "[3/3]" in text
    assert "━ 0/3 3 running" in re.sub("\x1b\\[[0-9;]*m", "", text)  # the bar stays, whatever runs


def test_the_time_left_is_shown():
    assert "left" in shown(outcomes())


def test_without_a_terminal_the_state_is_printed_now_and_then():
    sink = io.StringIO()
    records = outcomes()
    tally = SweepTally([builders.planned(record) for record in records])
    with SweepProgress(tally, console=Console(file=sink, width=80), line_s=0.01) as progress:
        progress.machines(Machines(nodes=2, nodes_busy=1, gpus=8, gpus_busy=3))
        progress.started(builders.planned(records[0]))
        progress.lost(builders.planned(records[0]))
        progress.started(builders.planned(records[0]))
        until_s = time.monotonic() + 300
        while "1 repeated" not in sink.getvalue() and time.monotonic() < until_s:
            time.sleep(0.005)
    line = sink.getvalue().splitlines()[-1]
    assert line == (
        "0 of 3 trials done, 1 running, 2 waiting, 1 lost, 1 repeated, 1 of 2 nodes busy, 3 of 8 GPUs busy."
    )


def test_a_state_with_everything_is_one_sentence():
    state = SweepState(
        total=100,
        done=40,
        done_by_others=30,
        running=9,
        running_by_others={"b": 2, "a": 2, "": 1, "c": 1, "d": 1},
        waiting=51,
        lost=2,
        repeated=1,
        nodes=6,
        nodes_busy=6,
        gpus=None,
        gpus_busy=9,
        left_s=7200,
        left_cost=Money(amount=12.3, currency="EUR"),
    )
    assert state_line(state) == (
        "40 of 100 trials done (30 by other machines), 9 running (2 on a, 2 on b, 1 on c, 1 on d, 1 more), 51 waiting, "
        "2 lost, 1 repeated, 6 of 6 nodes busy, 9 GPUs busy; about 2.0 h and 12.30 EUR left."
    )


def test_a_trial_on_the_cpu_says_so():
    record = builders.record(builders.spec(backend=Backend.CPU, gpu=None, model="tiny"), outcome=builders.on_cpu())
    assert shown([record]).strip() == "[1/1] tiny, full: ok on the CPU (4 s)"


def test_an_implied_trial_is_one_short_line():
    long = "Not run: qwen2.5-14b, full + checkpointing (trial 0123456789abcdef) ran out of memory. prune=false runs it."
    record = builders.record(builders.spec(), outcome=builders.failed(Status.IMPLIED, long))
    line = shown([record]).strip()
    assert "out of memory, implied by a smaller trial" in line
    assert len(line) < 80


def test_what_a_sweep_waits_for_is_one_line():
    sink = io.StringIO()
    with SweepProgress(SweepTally([]), console=Console(file=sink, width=40)) as progress:
        progress.waiting("Waiting for GPU [bold]: another sweep measures on it and holds /tmp/lock.")
    assert sink.getvalue() == "Waiting for GPU [bold]: another sweep measures on it and holds /tmp/lock.\n"
