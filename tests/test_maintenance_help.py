"""The tools of maintainers: their help has examples, and asking for it starts nothing."""

import pytest

from profiler.domain.errors import EXIT_OK, EXIT_USAGE


def benchmark(monkeypatch):
    from maintenance.benchmark import main

    monkeypatch.setattr(main, "_run", lambda *_: pytest.fail("a predictor is asked"))
    return main.main


def bench(monkeypatch):
    from maintenance import bench

    def started():
        raise AssertionError("the benchmark has started")

    monkeypatch.setattr(bench, "_rows", started)
    return bench.main


def accuracy(monkeypatch):
    from maintenance.accuracy import main

    monkeypatch.setattr(main, "_run", lambda *_: pytest.fail("a trial has started"))
    return main.main


def campaign(monkeypatch):
    from maintenance.campaign import main

    monkeypatch.setattr(main, "_run_stage", lambda *_: pytest.fail("a stage has started"))
    return main.main


def emulated(monkeypatch):
    from maintenance.emulated import main

    monkeypatch.setattr(main, "_run", lambda *_: pytest.fail("a trial has started"))
    return main.main


def engine_cost(monkeypatch):
    from maintenance.engine_cost import main

    monkeypatch.setattr(main, "cost", lambda *_, **__: pytest.fail("trials have started"))
    return main.main


def forecasts(monkeypatch):
    from maintenance.forecasts import main

    monkeypatch.setattr(main, "_run", lambda *_: pytest.fail("a run has started"))
    return main.main


def releases(monkeypatch):
    from maintenance.releases import main

    monkeypatch.setattr(main, "_write", lambda *_: pytest.fail("a page is written"))
    return main.main


def several_gpus(monkeypatch):
    from maintenance import several_gpus

    monkeypatch.setattr(several_gpus, "_run", lambda *_: pytest.fail("a trial has started"))
    return several_gpus.main


def sharding_page(monkeypatch):
    from maintenance.pages import sharding_page

    monkeypatch.setattr(sharding_page, "held_by_trials", lambda *_: pytest.fail("the page is written"))
    return sharding_page.main


def look_up(monkeypatch):
    from maintenance.look_up import main

    monkeypatch.setattr(main, "looked_up", lambda *_: pytest.fail("a look-up has started"))
    return main.main


def counted(monkeypatch):
    from maintenance import counted

    monkeypatch.setattr(counted, "count", lambda *_: pytest.fail("a step is counted"))
    return counted.main


def vision(monkeypatch):
    from maintenance.vision import main

    monkeypatch.setattr(main, "_run", lambda *_: pytest.fail("a trial has started"))
    return main.main


@pytest.mark.parametrize(
    "tool",
    [
        bench,
        benchmark,
        accuracy,
        campaign,
        emulated,
        engine_cost,
        forecasts,
        releases,
        several_gpus,
        sharding_page,
        look_up,
        counted,
        vision,
    ],
)
def test_help_has_examples_and_starts_nothing(tool, monkeypatch, capsys):
    for words in (["--help"], ["-h"], ["x", "--help"]):
        main = tool(monkeypatch)
        assert main(words) == EXIT_OK
        usage, _, examples = capsys.readouterr().out.partition("Examples:\n")
        command = f"python -m {main.__module__.removesuffix('.main')}"
        assert usage.startswith(command)
        assert command in examples
        assert max(map(len, (usage + examples).splitlines())) <= 80


@pytest.mark.parametrize(
    "tool", [bench, benchmark, accuracy, campaign, emulated, engine_cost, forecasts, look_up, counted, vision]
)
def test_an_unknown_option_is_a_fault(tool, monkeypatch, capsys):
    assert tool(monkeypatch)(["--limit-s", "5"]) == EXIT_USAGE
    assert "limit_s" in capsys.readouterr().err.replace("-", "_")
