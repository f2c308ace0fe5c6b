"""Runs of drawn lengths that are emulated and forecast: the comparison, its command, and the kept result."""

import io
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from maintenance.forecasts.compared import CAUSES, Compared, End, compared, keep, kept, read_causes, unexplained
from maintenance.forecasts.figure import runs_figure
from maintenance.forecasts.jobs import CARD_JOBS, JOBS, RUNS
from maintenance.forecasts.main import FIGURE, FOLDERS, PAGE, main
from maintenance.forecasts.page import comparison_page
from maintenance.forecasts.running import (
    Files,
    card_of,
    has_ended,
    limit_bytes,
    lines_of,
    measure,
    run_pending,
    smallest_capacity_bytes,
)
from maintenance.forecasts.whole_run import StepCounters
from profiler.domain.cards.card import cuda_context_bytes
from profiler.domain.errors import EXIT_ANSWER_IS_NO, EXIT_OK, EXIT_SOME_TRIALS_FAILED, EXIT_USAGE
from profiler.domain.memory import GIB, MIB, Phase
from profiler.domain.trials.trial import Backend

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
END = {"kind": "end"}
ON_CARD = [run for run in RUNS if run.job.side == "measured"]
SFT = [run for run in RUNS if run.job.name == "sft"]


def step(number: int, allocated: int = 100, reserved: int = 200) -> dict[str, Any]:
    return {
        "kind": "step", "step": number, "phase": "backward", "allocated_bytes": allocated * MIB,
        "reserved_bytes": reserved * MIB,
    }  # fmt: skip


def died(number: int, requested: int, allocated: int = 1000) -> dict[str, Any]:
    return {
        **step(number),
        "kind": "died",
        "phase": "forward",
        "requested_bytes": requested,
        "allocated_bytes": allocated,
    }


def write(path: Path, *lines: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def both(folder: Path, emulated: list[dict[str, Any]], forecast: list[dict[str, Any]]) -> list[str]:
    """What is found wrong with one run."""
    files = Files(folder=folder)
    write(files.trained(SFT[0]), *emulated, END)
    write(files.forecast(SFT[0]), *forecast, END)
    (found,) = compared(RUNS, files)
    return list(found.problems)


def test_every_difference_is_a_sentence(tmp_path):
    steps = [step(1), step(2, 120, 220)]
    assert both(tmp_path, steps, steps) == []
    # The emulated request is rounded by torch already.
    assert both(tmp_path, [*steps, died(3, 1024)], [*steps, died(3, 1000)]) == []
    assert both(tmp_path, steps, [step(1), step(2, 121, 220)]) == [
        "sft-default-whole: allocated memory differs in 1 of 2 steps."
    ]
    assert both(tmp_path, steps, [step(1), step(2, 120, 222)]) == []
    assert both(tmp_path, steps, [step(1), step(2, 120, 224)]) == [
        "sft-default-whole: reserved memory differs by up to 1.82%."
    ]
    held = "next to 1,000 allocated and 209,715,200 reserved"
    ends = f"emulated, step 3, forward, 1,024 bytes {held}; forecast, step 3, forward, 1,536 bytes {held}."
    assert both(tmp_path, [*steps, died(3, 1024)], [*steps, died(3, 1500)]) == [f"sft-default-whole: {ends}"]
    survives = f"sft-default-whole: emulated, it survives; forecast, step 2, forward, 512 bytes {held}."
    assert both(tmp_path, steps, [step(1), died(2, 512)]) == [survives]


def test_a_death_is_shown_with_what_was_held(tmp_path):
    def shown(emulated: int, forecast: int) -> str:
        assert both(tmp_path, [step(1), died(2, 512, emulated)], [step(1), died(2, 512, forecast)]) == []
        found = compared(RUNS, Files(folder=tmp_path))
        keep(found, tmp_path)
        pages = [comparison_page(one, {}, versions="", figure="") for one in (found, kept(tmp_path))]
        assert pages[0] == pages[1]
        return pages[0]

    assert "next to 1,000 allocated and 209,715,200 reserved, both |" in shown(1000, 1000)
    assert "next to 1,000 allocated and 209,715,200 reserved; step 2, " in shown(1000, 1512)


def test_a_run_that_was_stopped_counts_with_its_steps(tmp_path):
    stopped = {**END, "stopped": "the time limit of 1 s"}

    def problems(*forecast: dict[str, Any]) -> list[str]:
        files, run = Files(folder=tmp_path), ON_CARD[0]
        write(files.trained(run), step(1), step(2), stopped)
        write(files.forecast(run), *forecast, END)
        found = compared(RUNS, files)
        keep(found, tmp_path)
        (again,) = kept(tmp_path)
        assert (again.stopped, len(again.rows)) == ("the time limit of 1 s", min(2, len(forecast)))
        return list(again.problems)

    assert problems(step(1), step(2), step(3), died(4, 512)) == []
    assert len(problems(step(1), step(2), died(3, 512))) == 1
    assert len(problems(step(1, 101), step(2))) == 1


def test_what_stops_a_measured_run_is_kept(tmp_path, monkeypatch):
    program = tmp_path / "program.py"
    program.write_text("import sys; open(sys.argv[2], 'a').write('{\"kind\": \"step\"}\\n'); sys.exit('a reason')\n")
    monkeypatch.setattr("maintenance.forecasts.running.PROGRAM", program)
    files = Files(folder=tmp_path / "runs")
    measure(ON_CARD[0], files, timeout_s=60)
    name = ON_CARD[0].name
    assert lines_of(files.trained(ON_CARD[0]))[-1] == {**END, "stopped": f"{name} ended early: a reason"}
    assert has_ended(files.trained(ON_CARD[0]))
    assert (files.folder / f"{name}.measured.log").read_text() == "a reason\n"


def test_the_small_card_is_the_smallest_on_which_most_steps_run(tmp_path):
    tried = []

    def survives(capacity: int) -> bool:
        tried.append(capacity // MIB)
        return capacity >= 117 * MIB

    assert smallest_capacity_bytes(99 * MIB, 200 * MIB, survives) == 118 * MIB
    assert len(tried) <= 6
    files, small = Files(folder=tmp_path), next(run for run in SFT if run.is_small)
    write(files.forecast(small), END | {"capacity_bytes": 118 * MIB})
    card = card_of(small, files)
    assert card.memory_bytes - cuda_context_bytes(card.compute_capability) == 118 * MIB
    assert card_of(SFT[0], files).memory_bytes > 10**10


def test_a_limited_card_lies_between_allocated_and_reserved(tmp_path):
    files = Files(folder=tmp_path)
    whole, small = (next(run for run in ON_CARD if run.is_small is is_small) for is_small in (False, True))
    # The last third of the steps does not count.
    write(files.trained(whole), *(step(n, 100 + 4 * n, 600 + 10 * n) for n in range(1, whole.job.spec.steps + 1)), END)
    known = 2 * whole.job.spec.steps // 3
    assert limit_bytes(small, files) == (100 + 4 * known + 600 + 10 * known) // 2 // 2 * 2 * MIB
    assert limit_bytes(whole, files) is None
    # Of a run that was stopped before, all steps.
    write(files.trained(whole), step(1, 100, 200), END)
    assert limit_bytes(small, files) == 150 * MIB
    assert limit_bytes(next(run for run in SFT if run.is_small), files) is None


def test_runs_on_a_real_card_are_forecast_afterwards(tmp_path, monkeypatch):
    forecast, trained = [], []
    monkeypatch.setattr("maintenance.forecasts.running.forecast", lambda job, *_: forecast.append(job.name))

    def training(run: Any, files: Files) -> None:
        trained.append(run.is_small)
        write(files.trained(run), step(1), END)

    def pending(at_most: int | None) -> int:
        files = Files(folder=tmp_path)
        return run_pending(ON_CARD, files, training=training, at_most=at_most, jobs=2, say=lambda _: None)

    assert pending(0) == len(ON_CARD)
    assert pending(None) == 0
    assert trained == sorted(trained)
    assert forecast == []
    assert pending(0) == 0
    assert forecast == [job.name for job in CARD_JOBS]


class Card:
    """Counters of a card, with a peak that is set before each phase."""

    peak = 0

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.peak

    def stats_now(self) -> Any:
        return {name: {"all": {"current": 0}} for name in ("inactive_split_bytes", "segment")}

    def reset(self) -> None:
        self.peak = 0


def test_steps_begin_where_those_of_a_forecast_do():
    card, text = Card(), io.StringIO()
    counters = StepCounters(card, text)  # type: ignore[arg-type]
    one = [Phase.ROLLOUT, Phase.FORWARD, Phase.BACKWARD, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
    for size, phase in enumerate([Phase.LOAD, *one, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, *one]):
        counters.enter(phase)
        card.peak = max(card.peak, size)
    counters.end_step()
    lines = [json.loads(line) for line in text.getvalue().splitlines()]
    assert [(line["step"], line["allocated_bytes"]) for line in lines] == [(1, 6), (2, 9), (3, 15)]


def test_the_command_goes_on_and_says_what_differs(tmp_path, capsys):
    def emulating(run: Any, files: Files, **_: object) -> None:
        size = 101 if run.is_small else 100
        write(files.trained(run), step(1, size), END)

    files = Files(folder=tmp_path / "forecasts" / "runs")
    for run in SFT:
        write(files.forecast(run), step(1), END)

    def command(*words: str) -> int:
        chosen = ["job=sft", f"results_dir={tmp_path}", *words]
        return main(chosen, python_of=lambda _: None, training={Backend.EMULATED: emulating})  # type: ignore[arg-type, return-value]

    assert command("at_most=1") == EXIT_SOME_TRIALS_FAILED
    assert len(list(files.folder.glob("*.emulated.jsonl"))) == 1
    assert command("jobs=2") == EXIT_ANSWER_IS_NO
    assert "sft-default-small: allocated memory differs in 1 of 1 steps." in capsys.readouterr().err
    (tmp_path / "forecasts" / CAUSES).write_text("run,cause\nsft-expandable-small,A reason.\n")
    write(files.trained(SFT[1]), step(1), END)
    assert command("at_most=0") == EXIT_OK
    assert "differs in 1 of 1 steps. A reason." in (tmp_path / "forecasts" / PAGE).read_text()
    assert len(kept(tmp_path / "forecasts")) == len(SFT)
    assert main(["job=other"]) == EXIT_USAGE


@dataclass(frozen=True)
class Kept:
    """A kept result."""

    folder: str

    @property
    def path(self) -> Path:
        return REFERENCE / self.folder

    @cached_property
    def runs(self) -> list[Compared]:
        return kept(self.path)


EMULATED, MEASURED = (Kept(FOLDERS[backend]) for backend in (Backend.EMULATED, Backend.CUDA))
each_kept = pytest.mark.parametrize("result", [EMULATED, MEASURED], ids=lambda result: result.folder)


@each_kept
def test_the_kept_page_is_that_of_the_kept_rows(result):
    page = (result.path / PAGE).read_text()
    versions = page.partition("same draws. ")[2].partition(". Nothing")[0].partition(". Sizes")[0]
    assert page == comparison_page(result.runs, read_causes(result.path), versions=versions, figure=FIGURE)
    assert (result.path / FIGURE).exists()


@each_kept
def test_every_kept_difference_has_a_cause(result):
    assert unexplained(result.runs, read_causes(result.path)) == []


def test_emulated_runs_are_those_of_all_jobs():
    assert {each.run.job.name for each in EMULATED.runs} == {job.name for job in JOBS}
    # On a card that is not full, reserved memory is equal in every step.
    assert all(each.equal["reserved"] == len(each.rows) for each in EMULATED.runs if not each.run.is_small)
    ends = [(each.trained, each.forecast) for each in EMULATED.runs if each.run.is_small]
    assert all(trained == forecast for trained, forecast in ends)
    assert any(isinstance(trained, End) for trained, _ in ends)


def test_measured_runs_are_forecast_within_half_a_percent():
    assert {each.run.job.name for each in MEASURED.runs} == {job.name for job in CARD_JOBS}
    assert sum(len(each.rows) for each in MEASURED.runs) > 600
    assert all(max(each.worst.values()) < 0.005 for each in MEASURED.runs)


def test_the_figure_draws_both_sides():
    figure = runs_figure(MEASURED.runs)
    assert [len(axes.lines) for axes in figure.axes] == [4, 4]
    longest = max(MEASURED.runs, key=lambda each: len(each.rows) * (not each.run.alloc_conf))
    heights = figure.axes[0].lines[0].get_ydata()
    assert list(heights) == list(longest.rows.trained_reserved_bytes / GIB)
