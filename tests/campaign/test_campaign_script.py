"""Each item of the campaign as a user starts it, up to the door of the card."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from sweep_fakes import FakeWorld

from profiler.campaign.main import CAPS
from profiler.measurement.visible import VisibleGpu, VisibleGpus
from profiler.sweep import main as sweep

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "campaign.sh"
ITEMS = "123456"
H200 = VisibleGpus(gpus=(VisibleGpu(uuid="GPU-1", name="NVIDIA H200", memory_bytes=143_771 * 2**20),), note="")

# Notes what it is asked to run; of the card it says what a real one would.
_NOTING = """#!/bin/bash
echo "$@" >> {log}
case "$*" in
    "-m profiler.campaign card") echo stub-card ;;
    "-m profiler.campaign caps") echo {caps} ;;
    *) exit ${{STUB_CODE:-0}} ;;
esac
"""


def run(*words, **environment):
    # A copy of the checkout's script in a folder of its own, so that what it makes is not in the checkout.
    return subprocess.run(
        ["bash", *words], capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **environment}
    )


@pytest.fixture
def item(tmp_path):
    """Runs an item with a Python that only notes; gives the exit code, the commands and the standard error."""
    script = tmp_path / "scripts" / "campaign.sh"
    script.parent.mkdir()
    script.write_text(SCRIPT.read_text())
    log, noting = tmp_path / "log", tmp_path / "noting-python"
    noting.write_text(_NOTING.format(log=shlex.quote(str(log)), caps=" ".join(CAPS)))
    noting.chmod(0o755)

    def run_item(*words, **environment):
        log.unlink(missing_ok=True)
        done = run(str(script), *words, PYTHON=str(noting), **environment)
        commands = [shlex.split(line) for line in log.read_text().splitlines()] if log.exists() else []
        return done.returncode, commands, done.stderr

    return run_item


@pytest.mark.parametrize("number", ITEMS)
def test_without_a_gpu_an_item_ends_with_2_and_one_sentence(number):
    done = run(str(SCRIPT), number, PYTHON=sys.executable, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("card=none: the campaign needs a GPU, but ")
    assert done.stderr.count("\n") == 1


def test_list_says_what_each_item_does():
    done = run(str(SCRIPT), "list")
    assert done.returncode == 0
    assert [line[0] for line in done.stdout.splitlines()] == list(ITEMS)


@pytest.mark.parametrize("words", [[], ["7"], ["all"]])
def test_another_item_is_told_with_the_way_out(words):
    done = run(str(SCRIPT), *words)
    assert done.returncode == 2
    assert done.stderr.endswith("must be 1 to 6, or list. scripts/campaign.sh list says what each does.\n")


@pytest.mark.parametrize(("number", "trials"), [("3", 25 * 6), ("4", 12 + 6 + 18 + 12 + 36), ("5", 8), ("6", 9)])
def test_every_sweep_of_an_item_is_fit_to_run_on_a_big_card(item, number, trials, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    code, commands, _ = item(number, "dry_run=true")
    assert code == 0
    sweeps = [words[2:] for words in commands if words[1] == "profiler.sweep"]
    world = FakeWorld(visible=H200)
    listed = 0
    for words in sweeps:
        assert any(word.startswith("results_dir=results/campaign/stub-card") for word in words)
        assert sweep(words, parts=world.parts()) == 0
        out = capsys.readouterr().out
        assert "cuda" in " ".join(words)
        listed += int(next(line for line in out.splitlines() if "trials" in line).split()[0])
    assert listed == trials
    assert not world.runs


def test_facts_and_truth_have_processes_of_their_own(item):
    assert item("1")[1][1:] == [["-m", "profiler.campaign", "facts", "results/campaign/stub-card"]]
    kinds = [words[3] for words in item("2")[1][1:]]
    assert kinds == ["full", "lora"]


def test_each_period_has_a_folder_of_its_own_and_a_time_at_which_its_command_began(item, tmp_path):
    _, commands, _ = item("6")
    looking = tmp_path / "results/campaign/stub-card/looking"
    assert sorted(path.parent.name for path in looking.rglob("command_began")) == ["0.01", "0.1", "null"]
    assert commands[-1][2] == "looking"
    assert [word.split("/")[-2] for word in commands[-1][3:]] == ["null", "0.1", "0.01"]
    began = (looking / "0.1/command_began").stat().st_mtime_ns
    (looking / "0.1/logprobs/records").mkdir(parents=True)
    (looking / "0.1/logprobs/records/a.json").touch()
    item("6")
    assert (looking / "0.1/command_began").stat().st_mtime_ns == began


def test_some_trials_without_an_answer_do_not_keep_the_others_from_running(item):
    code, commands, _ = item("4", STUB_CODE="3")
    assert code == 3
    assert len([words for words in commands if words[1] == "profiler.sweep"]) == 5


@pytest.mark.parametrize("ends", ["2", "33", "130"])
def test_what_ends_a_sweep_for_good_ends_the_item(item, ends):
    code, commands, _ = item("4", STUB_CODE=ends)
    assert code == int(ends)
    assert len([words for words in commands if words[1] == "profiler.sweep"]) == 1


def test_an_item_whose_time_is_over_ends_and_says_how_it_goes_on(item):
    code, commands, err = item("4", CAMPAIGN_LIMIT_S="0")
    assert code == 3
    assert err == "Item 4 is not finished after 0 s; the same command goes on.\n"
    assert len(commands) == 1
