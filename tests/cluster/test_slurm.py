"""Slurm as far as it needs no Slurm: what is refused, and how slots of an earlier start are found."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from profiler.cluster.arrays import slurm
from profiler.config.options.run_options import RunOptions
from profiler.domain.errors import UsageError
from profiler.domain.machines import extras
from profiler.domain.machines.engines import Scheduler, SlurmGpus, SlurmName, SlurmTime
from profiler.sweep import parts
from profiler.sweep.prepared.engine import for_engine

OPTIONS = RunOptions(engine=Scheduler.SLURM, slurm_time=SlurmTime(minutes=90))


@pytest.fixture
def programs(monkeypatch, tmp_path):
    """Return a function that puts a program on the path, which then has no other."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def put(name, script):
        (folder / name).write_text(f"#!/bin/bash\n{script}\n")
        (folder / name).chmod(0o755)

    return put


def test_without_submitit_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(UsageError) as found:
        parts.reach(OPTIONS)
    hint = extras.install_hint(extras.Extra.SLURM)
    assert str(found.value) == f"engine=slurm: needs submitit, which is not installed. {hint}"


def test_without_sbatch_the_sweep_belongs_on_a_login_node(monkeypatch, programs):
    monkeypatch.setattr(extras, "find_spec", lambda name: "there")
    with pytest.raises(UsageError) as found:
        parts.reach(OPTIONS)
    assert str(found.value) == (
        "engine=slurm: needs Slurm's command sbatch, which is not on the path. "
        "Run the sweep on a login node of the cluster."
    )


def test_sbatch_is_asked_for_what_the_slots_need_and_its_refusal_is_one_sentence(programs, tmp_path):
    programs(
        "sbatch", f'echo "$@" > {tmp_path}/asked; echo "sbatch: error: invalid partition specified: x" >&2; exit 1'
    )
    options = replace(OPTIONS, slurm_partition=SlurmName("x"), slurm_gpus_per_node=SlurmGpus(kind="h100", count=2))
    (fault,) = slurm.slurm_faults(options)
    assert fault.sentence() == (
        "engine=slurm: sbatch refuses the slots (invalid partition specified: x). "
        "Check slurm_partition, slurm_account, slurm_time and slurm_gpus_per_node."
    )
    asked = (tmp_path / "asked").read_text().split()
    assert asked == ["--test-only", "--partition=x", "--gpus-per-node=h100:2", "--time=01:30:00", "--wrap=true"]


def test_a_slurm_that_does_not_answer_is_not_waited_for(programs):
    programs("sbatch", "while :; do :; done")
    (fault,) = slurm.slurm_faults(OPTIONS, answer_s=0.1)
    assert "Slurm did not answer within 0.1 s" in fault.sentence()


def test_slots_of_an_earlier_start_with_the_same_command_go_on(programs, tmp_path):
    programs("squeue", 'if [[ "$*" = *grpo-vram-alive* ]]; then echo "7_0 RUNNING"; echo "7_1 PENDING"; fi')
    for name, key in (("alive", ["a"]), ("other", ["b"]), ("ended", ["a"])):
        (tmp_path / "slurm" / name).mkdir(parents=True)
        (tmp_path / "slurm" / name / "array.json").write_text(json.dumps(key))
    found = slurm.open_array(tmp_path / "slurm", lambda folder: lambda: None, OPTIONS, ["a"])
    assert found.names == {"7_0", "7_1"}
    assert Path(found.place).name == "alive"
    new = slurm.open_array(tmp_path / "slurm", lambda folder: lambda: None, OPTIONS, ["c"])
    assert new.names == set()
    assert not Path(new.place).exists()


def test_slots_that_were_cancelled_and_are_about_to_end_do_not_go_on(programs, tmp_path):
    programs("squeue", 'echo "7_0 COMPLETING"')
    (tmp_path / "cancelled").mkdir()
    (tmp_path / "cancelled" / "array.json").write_text('["a"]')
    found = slurm.open_array(tmp_path, lambda folder: lambda: None, OPTIONS, ["a"])
    assert found.names == set()
    assert Path(found.place).name != "cancelled"
    assert (tmp_path / "cancelled").exists()  # they may write to it
    assert found.jobs.queued() == {"7_0": True}


def test_what_is_left_of_slots_that_have_ended_is_removed(programs, tmp_path):
    programs("squeue", "")
    (tmp_path / "ended").mkdir()
    (tmp_path / "ended" / "array.json").write_text('["a"]')
    found = slurm.open_array(tmp_path, lambda folder: lambda: None, OPTIONS, ["a"])
    assert found.names == set()
    assert not (tmp_path / "ended").exists()


def test_a_queue_that_cannot_be_asked_is_not_an_empty_one(programs, tmp_path):
    programs("squeue", "exit 1")
    assert slurm.SlurmJobs(folder=tmp_path, function=lambda: None, options=OPTIONS).queued() is None
    (tmp_path / "alive").mkdir()
    (tmp_path / "alive" / "array.json").write_text('["a"]')
    with pytest.raises(slurm.SubmissionError, match="squeue failed"):
        slurm.open_array(tmp_path, lambda folder: lambda: None, OPTIONS, ["a"])
    assert (tmp_path / "alive").exists()


def test_a_folder_of_results_becomes_an_address_that_slots_share(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(for_engine(OPTIONS).results_dir) == f"file://{tmp_path}/results"
    shared = for_engine(OPTIONS)
    assert for_engine(shared) == shared
    assert for_engine(RunOptions()) == RunOptions()
