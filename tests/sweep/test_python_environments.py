"""`python=ENVIRONMENT,ENVIRONMENT`: the trials of a grid in several environments, and what changed between them."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path, PurePath
from types import SimpleNamespace

import builders
import pytest
from sweep_fakes import VERSIONS, as_parts

from profiler.config.options.run_options import RunOptions
from profiler.domain.errors import EXIT_ANSWER_IS_NO, EXIT_OK, EXIT_SOME_TRIALS_FAILED, EXIT_USAGE, UsageError
from profiler.domain.runs.outcome import Status
from profiler.emulation.launch import profiler_environment
from profiler.execution.pythons import Interpreter, simulated_workers
from profiler.storage.records.versioned import installed_versions
from profiler.sweep import main as sweep_main
from profiler.sweep.parts import SweepParts

GUARD = ("+grid=guard", "backend=simulated")
OLD, NEW = "/some/old/bin/python", "/some/new"
BOTH = f"python={OLD},{NEW}"


@pytest.fixture
def compare(world, tmp_path, capsys):
    """Return a function that runs a sweep in made-up environments; peaks are `scales` times as large there."""

    def run(*words, scales=None, statuses=None):
        scales = {OLD: 1.0, NEW: 1.0, **(scales or {})}

        def workers(options):
            python = str(options.python)
            trl = {OLD: "1.15.0", NEW: "1.16.0"}[python]
            versions = replace(VERSIONS, torch="2.13.0", peft="0.21.2", bitsandbytes="0.50.2", trl=trl)
            interpreter = Interpreter(executable=python, environment={}, search_path=())
            return SimpleNamespace(versions=versions, interpreter_of=lambda spec: interpreter)

        def run_trials(plan, *, store, versions, interpreter_of, **_):
            for trial in plan:
                python = interpreter_of(trial.spec).executable
                outcome = builders.outcome(trial.spec, scale=scales[python])
                if statuses and python in statuses:
                    outcome = builders.failed(statuses[python], "a part has moved")
                store.write(replace(builders.record(trial.spec, outcome=outcome), trial_id=trial.trial_id,
                                    label=trial.label, grid=trial.grid, versions=versions))  # fmt: skip
                world.runs.append((python, trial.trial_id))
            return ()

        own = SweepParts()
        parts = world.parts(
            simulated_workers=workers,
            run=as_parts(run_trials),
            open_store=own.open_store,
            write_tables=own.write_tables,
        )
        code = sweep_main.main([*words, f"results_dir={tmp_path}"], parts=parts)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_each_trial_runs_in_both_environments_and_is_compared(compare, world, tmp_path):
    code, out, err = compare(*GUARD, BOTH, "max_increase=2%")
    assert (code, err) == (EXIT_OK, "")
    assert [python for python, _ in world.runs] == [OLD] * 7 + [NEW] * 7
    assert len({name for _, name in world.runs}) == 14
    assert "| trl | **1.15.0** | **1.16.0** |" in out
    assert "| torch | 2.13.0 | 2.13.0 |" in out
    assert "### GPU memory: 0 of 7 trials grew by more than 2 %" in out
    page = (tmp_path / "guard" / "environments.md").read_text()
    assert page in out
    assert page.count("| 0% |") == 7
    assert "| trial | old | new | change |" in page


@pytest.mark.parametrize(
    ("words", "scale", "code"),
    [(["max_increase=2%"], 1.03, EXIT_ANSWER_IS_NO), (["max_increase=0.05"], 1.03, 0), ([], 2, 0)],
)
def test_a_peak_that_grew_by_more_is_no(compare, words, scale, code):
    found, out, _ = compare(*GUARD, BOTH, *words, scales={NEW: scale})
    assert found == code
    assert ("7 of 7 trials grew by more than" in out) == (words != ["max_increase=0.05"])


def test_a_version_that_is_refused_is_no_and_its_reason_is_said_once(compare):
    code, out, _ = compare(*GUARD, BOTH, "max_increase=50%", statuses={NEW: Status.UNSUPPORTED})
    assert code == EXIT_ANSWER_IS_NO
    assert "and 7 have no figure in new" in out
    assert out.count("a part has moved") == 1


def test_trials_without_an_answer_come_first(compare):
    assert compare(*GUARD, BOTH, "max_increase=2%", statuses={NEW: Status.TIMEOUT})[0] == EXIT_SOME_TRIALS_FAILED


def test_the_same_command_runs_nothing_again(compare, world):
    compare(*GUARD, BOTH)
    code, out, _ = compare(*GUARD, BOTH)
    assert (code, len(world.runs)) == (0, 14)
    assert out.count("7 of 7 trials are stored already") == 2


def test_a_dry_run_lists_the_trials_once(compare, world):
    code, out, _ = compare(*GUARD, BOTH, "dry_run=true")
    assert code == 0
    assert "7 trials, none run" in out
    assert world.runs == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([f"python={OLD},{OLD}"], f"python={OLD},{OLD}: names {OLD} twice."),
        (["max_increase=2%"], "max_increase=0.02: compares environments, and none are named. Add python="),
        ([BOTH, "max_increase=much"], "max_increase=much: must be an increase of at least 0, such as 2% or 0.02."),
        ([BOTH, "backend=cpu"], "is for backend=simulated and backend=emulated"),
    ],
)
def test_bad_input_ends_before_anything_starts(compare, world, words, sentence):
    code, _, err = compare(*GUARD, *words)
    assert code == EXIT_USAGE
    assert sentence in err
    assert world.runs == []


def test_a_simulation_in_another_environment_has_its_packages_and_this_profiler(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/of/the/caller")
    workers = simulated_workers(RunOptions(python=PurePath(sys.prefix)))
    assert workers.versions == installed_versions()
    interpreter = workers.interpreter_of(builders.spec())
    assert Path(interpreter.executable) == Path(sys.prefix) / "bin" / "python"
    assert "/of/the/caller" not in interpreter.search_path
    # It has a profiler of its own, which must not be the one that runs.
    (tmp_path / "profiler").mkdir()
    (tmp_path / "profiler" / "__init__.py").write_text("")
    environment = profiler_environment(Path(sys.executable), base=os.environ)
    said = subprocess.run(
        [sys.executable, "-c", "import profiler.domain.memory as it; print(it.__file__)"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert Path(said.stdout.strip()).parents[2] == Path(__file__).parents[2]


def test_an_environment_without_packages_is_one_fault(tmp_path):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(Path(sys.base_prefix) / "bin" / "python3")
    with pytest.raises(UsageError) as caught:
        simulated_workers(RunOptions(python=PurePath(tmp_path)))
    (fault,) = caught.value.faults
    assert fault.sentence().startswith(f"python={python}: has no accelerate, bitsandbytes, ")
    assert "docs/install.md" in fault.sentence()
