"""`backend=emulated` from the command line to the workers, with a Python that only answers questions."""

import json
import sys
from dataclasses import asdict, replace

import builders
import pytest
from sweep_fakes import VERSIONS

from profiler.config.options.run_options import RunOptions
from profiler.config.trials.identity import trial_id
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import EXIT_USAGE, Fault, UsageError
from profiler.domain.trials.trial import Backend, DistributedType, TrialSpec
from profiler.emulation.interpreter import EMULATION_VERSION
from profiler.emulation.launch import EmulatedPython
from profiler.execution import pythons as emulated
from profiler.execution.pythons import EmulatedWorkers, emulated_workers
from profiler.measurement.driver.visible import CAPABILITIES
from profiler.sweep.main import main

GRID = "+grid=lora_vs_full"
INSTALLED = replace(VERSIONS, torch="2.13.0", peft="0.21.2", bitsandbytes="0.50.2")


def answer(**changes) -> str:
    return json.dumps(
        {
            "python": sys.version_info[:2],
            "path": ["/its/packages"],
            "versions": asdict(INSTALLED),
            "missing": [],
            **changes,
        }
    )


@pytest.fixture
def python(tmp_path, monkeypatch):
    """Return a function that makes a Python which answers every question with `text`, and keeps its variables."""

    def made(text: str, *, exit_code: int = 0) -> EmulatedPython:
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\nenv > {tmp_path}/variables\ncat <<'END'\n{text}\nEND\nexit {exit_code}\n")
        program.chmod(0o755)
        found = EmulatedPython(executable=program, torch="2.13.0+cu130", cuda="13.0", libraries=tmp_path)
        monkeypatch.setattr(emulated, "emulated_python", lambda executable, *, strict: found)
        return found

    return made


def test_versions_are_those_of_the_other_python(python):
    python(answer())
    workers = emulated_workers(RunOptions())
    assert workers.versions == replace(INSTALLED, torch="2.13.0+cu130", cuda="13.0", emulation=EMULATION_VERSION)
    assert workers.search_path == ("/its/packages",)


def test_the_environment_of_a_worker_has_its_card_and_nothing_of_the_callers_gpus(python, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("PYTHONPATH", "/of/the/caller")
    found = python(answer())
    workers = emulated_workers(RunOptions(strict=False))
    spec = TrialSpec(backend=Backend.EMULATED, gpu="t4-16gb", model="tiny")
    interpreter = workers.interpreter_of(spec)
    variables = interpreter.environment
    assert interpreter.executable == str(found.executable)
    assert KNOWN_GPUS["t4-16gb"].title in variables["EMULATED_CARD"]
    assert variables[CAPABILITIES] == "7.5"
    assert "CUDA_VISIBLE_DEVICES" not in variables
    assert "/of/the/caller" not in variables["PYTHONPATH"]
    assert "EMULATED_STRICT" not in variables
    assert workers.interpreter_of(replace(spec, seed=1)) == interpreter
    assert workers.interpreter_of(replace(spec, gpu="h100-80gb")) != interpreter


@pytest.mark.parametrize(
    ("text", "exit_code", "problem"),
    [
        (answer(python=[3, 9]), 0, "is Python 3.9, but this program runs in "),
        (answer(missing=["trl", "peft"]), 0, "has no trl, peft."),
        ("nothing", 0, "cannot be asked for its packages ("),
        ("", 3, "cannot run this program (exit code 3)"),
    ],
)
def test_a_python_in_which_no_trial_runs_is_one_fault(python, text, exit_code, problem):
    found = python(text, exit_code=exit_code)
    with pytest.raises(UsageError) as caught:
        emulated_workers(RunOptions())
    (fault,) = caught.value.faults
    assert fault.sentence().startswith(f"python={found.executable}: ")
    assert problem in fault.sentence()
    assert "python -m profiler.emulation install" in fault.sentence()


@pytest.fixture
def emulate(world, tmp_path, capsys):
    """Return a function that runs a sweep whose other Python is made up."""
    other = EmulatedPython(executable=tmp_path / "python", torch="2.13.0+cu130", cuda="13.0", libraries=tmp_path)
    versions = replace(INSTALLED, torch=other.torch, cuda=other.cuda, emulation="1")
    workers = EmulatedWorkers(python=other, versions=versions, search_path=(), strict=True)
    asked = []

    def run(*words):
        parts = world.parts(emulated_workers=lambda options: asked.append(options) or workers)
        code = main([*words, f"results_dir={tmp_path / 'results'}"], parts=parts)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    run.asked, run.versions = asked, versions
    return run


def test_a_sweep_records_the_versions_of_its_emulation(emulate, world):
    code, _, err = emulate(GRID, "backend=emulated", "gpu=t4-16gb,h100-80gb", "python=/some/python")
    assert (code, err) == (0, "")
    ((plan, how),) = world.runs
    assert len(plan) == 50
    assert how["versions"] == emulate.versions
    assert {trial.trial_id for trial in plan} == {trial_id(trial.spec, emulate.versions) for trial in plan}
    assert [str(options.python) for options in emulate.asked] == ["/some/python"]
    cards = {how["interpreter_of"](trial.spec).environment["EMULATED_CARD"] for trial in plan}
    assert len(cards) == 2
    assert how["gpu_uuids"] == ()


def test_a_dry_run_needs_no_environment(world, capsys):
    def none_found(_):
        raise UsageError([Fault(key="python", found="none", problem="no environment was found")])

    parts = world.parts(emulated_workers=none_found)
    words = [GRID, "backend=emulated", "model=qwen2.5-3b"]
    assert main([*words, "dry_run=true"], parts=parts) == 0
    out = capsys.readouterr().out
    assert "Trial ids are not known: no environment was found." in out
    rows = [line for line in out.splitlines() if "qwen2.5-3b" in line]
    assert len(rows) == 5
    assert all(line.startswith("? ") and "GiB" in line for line in rows)
    assert main(words, parts=parts) == EXIT_USAGE
    assert main([*words, "dry_run=true", "python=/some/python"], parts=parts) == EXIT_USAGE
    assert not world.runs


def test_deepspeed_that_is_missing_is_named_with_what_installs_it(emulate):
    words = [GRID, "backend=emulated", "optim=adamw_torch", "num_processes=2", "distributed_type=deepspeed"]
    code, _, err = emulate(*words)
    assert code == EXIT_USAGE
    assert "distributed_type=deepspeed: DeepSpeed is not installed" in err
    assert "pip install deepspeed" in err


def test_the_version_of_deepspeed_is_a_part_of_the_id_of_its_trials():
    spec = builders.spec(zero_stage=2, distributed_type=DistributedType.DEEPSPEED, num_processes=2)
    assert len({trial_id(spec, replace(INSTALLED, deepspeed=version)) for version in ("0.19.8", "0.20.0")}) == 2
    assert len({trial_id(builders.spec(), replace(INSTALLED, deepspeed=version)) for version in ("0.19.8", None)}) == 1


def test_the_same_command_again_runs_nothing(emulate, world):
    emulate(GRID, "backend=emulated")
    code, out, _ = emulate(GRID, "backend=emulated")
    assert (code, len(world.runs)) == (0, 1)
    assert "25 of 25 trials are stored already" in out


def test_other_backends_ask_no_other_python(emulate, world):
    assert emulate(GRID)[0] == 0
    assert emulate.asked == []
    assert world.runs[0][1]["interpreter_of"](world.runs[0][0][0].spec) is None


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["backend=emulated,simulated"], "backend=emulated,simulated: emulated cannot run with another backend"),
        (["backend=cpu", "python=/some/python"], "python=/some/python: is for backend=simulated and"),
        (["backend=emulated", "gpu=a100"], "gpu=a100: is one of several cards: a100-40gb"),
        (["backend=emulatd"], "Did you mean 'emulated'?"),
    ],
)
def test_bad_input_ends_before_anything_starts(emulate, world, words, sentence):
    code, _, err = emulate(GRID, *words)
    assert code == 2
    assert sentence in err
    assert world.runs == []
