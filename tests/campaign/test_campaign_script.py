"""The campaign's script as a user starts it, up to the first use of the card, and its stages as data."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from sweep_fakes import FakeWorld

from maintenance.campaign import running
from maintenance.campaign.running import run_stage
from maintenance.campaign.stages import FOLDER, STAGES, Stage, Step, stage
from profiler.measurement.driver.visible import VisibleGpu, VisibleGpus
from profiler.sweep.main import main as sweep

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "campaign.sh"
LETTERS = "ABCDEGHIF"
H200 = VisibleGpus(gpus=(VisibleGpu(uuid="GPU-1", name="NVIDIA H200", memory_bytes=143_771 * 2**20),), note="")


def run(*words, **environment):
    return subprocess.run(
        ["bash", str(SCRIPT), *words],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHON": sys.executable, **environment},
    )


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "campaign"


def test_list_says_what_each_stage_does(folder):
    done = run("list", CAMPAIGN_DIR=str(folder))
    assert done.returncode == 0
    assert [line[0] for line in done.stdout.splitlines()] == list(LETTERS)


def test_the_command_starts_without_torch_and_pandas():
    """Each stage starts it several times on a card that is paid for by the hour."""
    code = "import sys, maintenance.campaign.main; sys.exit(bool({'torch', 'pandas'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("letter", "ABCDEGH")
def test_without_a_gpu_a_stage_ends_with_2_and_one_sentence(folder, letter):
    done = run(letter, CAMPAIGN_DIR=str(folder), CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("card=none: the campaign needs a GPU, but ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [[], ["J"], ["all"]])
def test_another_stage_is_refused_with_what_is_allowed(folder, words):
    done = run(*words, CAMPAIGN_DIR=str(folder))
    assert done.returncode == 2
    assert "must be one of A, B, C, D, E, G, H, I, F" in done.stderr
    assert done.stderr.endswith("Write: scripts/campaign.sh list\n")


def test_wheels_are_installed_once_and_found_first(tmp_path, folder):
    """A Python that only notes what it is asked for."""
    log, noting = tmp_path / "log", tmp_path / "python"
    noting.write_text(
        f'#!/bin/bash\necho "$PYTHONPATH|$*" >> {shlex.quote(str(log))}\n'
        'while [ $# -gt 0 ]; do if [ "$1" = --target ]; then mkdir -p "$2"; fi; shift; done\n'
    )
    noting.chmod(0o755)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "trl-1.whl").touch()
    for _ in range(2):
        done = run("a", "seed=1", PYTHON=str(noting), CAMPAIGN_DIR=str(folder), CAMPAIGN_WHEELS=str(wheels))
        assert done.returncode == 0, done.stderr
    lines = [line.partition("|") for line in log.read_text().splitlines()]
    installs = [words for _, _, words in lines if words.startswith("-m pip install")]
    stages = [(path, words) for path, _, words in lines if "maintenance.campaign stage" in words]
    assert len(installs) == 1
    assert installs[0].endswith(str(wheels / "trl-1.whl"))
    assert len(stages) == 2
    for path, words in stages:
        assert path.split(":")[0] == str(folder / "site")
        assert words.split()[2:] == ["stage", "a", str(folder), "limit_s=500", "seed=1"]


def required_by(names):
    """What these distributions need, directly or by others, without extras."""
    found, waiting = set(), [canonicalize_name(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            with suppress(PackageNotFoundError):
                needed = [Requirement(line) for line in requires(name) or ()]
                waiting += [
                    canonicalize_name(one.name) for one in needed if not (one.marker and "extra" in str(one.marker))
                ]
    return found


def with_extra(project, extra):
    """What the distribution of these metadata needs with an extra, and with those that the extra names."""
    named = [Requirement(line) for line in project["optional-dependencies"][extra]]
    own = [one for one in named if one.name == project["name"]]
    further = [each for one in own for name in one.extras for each in with_extra(project, name)]
    return [one for one in named if one not in own] + further + [Requirement(line) for line in project["dependencies"]]


def test_the_image_and_the_wheels_have_all_that_a_measured_sweep_needs():
    """The machine has no network: what is missing there is missing when the card is at hand."""
    script = (ROOT / "scripts" / "offline_wheels.sh").read_text()
    comment = re.search(r"must have ([^.]+)\.", script)[1]
    image = required_by(comment.replace(" and ", ", ").split(", "))
    assert {"torch", "rich", "nvidia-ml-py", "numpy"} <= image
    wheels = {*re.search(r"packages=\(([^)]+)\)", script)[1].split(), *re.findall(r"\(pinned ([a-z0-9-]+)\)", script)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {canonicalize_name(one.name) for one in with_extra(project, "simulate")}
    assert {"trl", "hydra-core", "pyyaml"} <= needed
    assert needed <= image | {*map(canonicalize_name, wheels)}


# ---- the stages ------------------------------------------------------------------------------------------------------


def test_each_letter_is_one_stage_and_case_does_not_matter():
    assert "".join(one.letter for one in STAGES) == LETTERS
    assert stage("c") is stage("C") is STAGES[2]
    assert stage("x") is None


def sweeps_of(letter):
    return [step.words[2:] for step in stage(letter).steps if step.words[1] == "profiler.sweep"]


@pytest.mark.parametrize(
    ("letter", "trials"),
    # A: the door and 25; B: 25, 3 models x 5 methods, 2 x 2 rollouts; C: 10 + 10 + 5 capped, 5, 4, 2 x 3;
    # D: 3 periods x 3, 10, 3, 10, 2; E: 2, 10, 2
    [("A", 1 + 25), ("B", 25 + 15 + 4), ("C", 25 + 5 + 4 + 6), ("D", 9 + 10 + 3 + 10 + 2), ("E", 2 + 10 + 2)],
)
def test_every_sweep_of_a_stage_is_fit_to_run_on_a_big_card(letter, trials, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    world, listed = FakeWorld(visible=H200), 0
    for words in sweeps_of(letter):
        placed = [word.replace(FOLDER, str(tmp_path)) for word in words]
        assert f"results_dir={tmp_path}" in " ".join(placed)
        assert "backend=cuda" in placed
        assert sweep([*placed, "dry_run=true"], parts=world.parts()) == 0
        out = capsys.readouterr().out
        listed += int(next(line for line in out.splitlines() if " trials, " in line).split()[0])
    assert listed == trials
    assert not world.runs


def test_no_stage_runs_paged_optimizers():
    assert "paged" not in str(STAGES)


def test_only_the_first_step_of_the_first_stage_is_a_door():
    assert [step.is_prerequisite for one in STAGES for step in one.steps].index(True) == 0
    assert sum(step.is_prerequisite for one in STAGES for step in one.steps) == 1


# ---- running one -----------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


def made_up(*names, door=False):
    steps = [Step(name=name, words=("-m", "profiler.sweep", f"{FOLDER}/{name}")) for name in names]
    first = [Step(name="door", words=("-m", "profiler.sweep", "door"), is_prerequisite=True)] if door else []
    return Stage(letter="Z", title="made up", steps=(*first, *steps))


def through(asked, codes, *, tmp_path, seconds_per_step=1.0, limit_s=100.0, more=()):
    """Runs a stage whose steps end with `codes`; the end, and (words, time left) of each step that ran."""
    clock, ran, left = Clock(), [], list(codes)

    def step(words, limit_s):
        ran.append((words, limit_s))
        clock.now_s += seconds_per_step
        return left.pop(0)

    end = run_stage(asked, tmp_path, limit_s=limit_s, more=more, run=step, clock=clock, say=lambda _: None)
    return end, ran


def test_the_steps_run_in_order_in_the_campaigns_folder_with_the_users_keys(tmp_path):
    end, ran = through(made_up("a", "b"), [0, 0], tmp_path=tmp_path, more=["seed=1"])
    assert (end.exit_code, end.line) == (0, "Stage Z is done.")
    assert [words for words, _ in ran] == [["-m", "profiler.sweep", f"{tmp_path}/{name}", "seed=1"] for name in "ab"]
    assert [left for _, left in ran] == [100.0, 99.0]


def test_a_step_without_all_its_answers_does_not_keep_the_others_from_running(tmp_path):
    end, ran = through(made_up("a", "b", "c"), [3, 0, 0], tmp_path=tmp_path)
    assert (end.exit_code, len(ran)) == (3, 3)


@pytest.mark.parametrize("code", [2, 33, 129, 130, 143])
def test_what_ends_a_sweep_for_good_ends_the_stage(tmp_path, code):
    end, ran = through(made_up("a", "b"), [code], tmp_path=tmp_path)
    assert (end.exit_code, len(ran)) == (code, 1)


def test_nothing_runs_after_a_door_that_does_not_open(tmp_path):
    end, ran = through(made_up("a", door=True), [3], tmp_path=tmp_path)
    assert (end.exit_code, len(ran)) == (3, 1)
    assert "its first trial has no answer" in end.line


def test_a_stage_whose_time_is_up_says_how_it_goes_on(tmp_path):
    end, ran = through(made_up("a", "b"), [0, 0], tmp_path=tmp_path, seconds_per_step=60, limit_s=50)
    assert (end.exit_code, len(ran)) == (3, 1)
    assert end.line == "Stage Z is not finished after 50 s; the same command goes on."


def test_a_step_that_is_cut_off_ends_the_stage(tmp_path):
    end, ran = through(made_up("a", "b"), [None], tmp_path=tmp_path)
    assert (end.exit_code, len(ran)) == (3, 1)


_ENDS_IN_GOOD_ORDER = (
    "import signal, sys; signal.signal(signal.SIGINT, lambda *_: sys.exit(130)); print('on', flush=True); "
)
_HANGS = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); print('on', flush=True); "


@pytest.mark.parametrize("program", [_ENDS_IN_GOOD_ORDER, _HANGS], ids=["ends at SIGINT", "ignores it"])
def test_a_step_is_asked_to_end_and_then_made_to(program, monkeypatch, tmp_path):
    monkeypatch.setattr(running, "GRACE_S", 0.5)
    started = []
    real = subprocess.Popen

    def noted(*words, **how):
        process = real(*words, stdout=subprocess.PIPE, **how)
        process.stdout.readline()  # it is on its way
        started.append(process)
        return process

    monkeypatch.setattr(running.subprocess, "Popen", noted)
    assert running._run(["-c", program + "import time; time.sleep(600)"], 0.1) is None
    assert started[0].returncode in (130, -signal.SIGKILL)


def test_a_stage_that_is_interrupted_ends_its_step_in_good_order(tmp_path):
    step = _ENDS_IN_GOOD_ORDER + f"open({str(tmp_path / 'on')!r}, 'w').close(); import time; time.sleep(600)"
    step = step.replace("sys.exit(130)", f"(open({str(tmp_path / 'ended')!r}, 'w').close(), sys.exit(130))")
    program = (
        "import sys; from profiler.command_line import as_command; from maintenance.campaign.running import _run; "
        f"sys.exit(as_command('stage')(lambda: _run(['-c', {step!r}], 600))())"
    )
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) as stage:
        while not (tmp_path / "on").exists():
            assert stage.poll() is None
            time.sleep(0.02)
        stage.send_signal(signal.SIGTERM)
        _, errors = stage.communicate()
    assert (stage.returncode, errors) == (143, "Interrupted by SIGTERM.\n")
    assert (tmp_path / "ended").exists()


def test_a_step_that_a_signal_ended_counts_as_128_and_its_number():
    assert running._run(["-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"], 60) == 137


def test_a_step_runs_offline_with_the_users_environment_first(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    program = "import os, sys; sys.exit(int(os.environ['HF_HUB_OFFLINE'] + os.environ['HF_DATASETS_OFFLINE']))"
    assert running._run(["-c", program], 60) == 1
