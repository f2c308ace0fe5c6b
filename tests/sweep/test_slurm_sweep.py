"""`engine=slurm` on a login node: what slots are given, how measured trials are named, and what is refused."""

from dataclasses import replace

import pytest
from sweep_fakes import H100, VERSIONS, as_parts

from profiler.cluster.arrays.slurm import SlotJob
from profiler.domain.errors import EXIT_OK, EXIT_USAGE
from profiler.domain.machines.engines import SlurmGpus
from profiler.domain.runs.outcome import Outcome, Status, TrialRecord, Verdict
from profiler.sweep.command import read_command
from profiler.sweep.prepared.preparation import architecture_lookup, prepare

WORDS = ("+grid=lora_vs_full", "model=qwen2.5-0.5b", "jobs=8")
GPUS = "slurm_gpus_per_node=h100:1"


class FakeArray:
    """Slots that report an H100."""

    reports, card = None, "h100-80gb"

    def __init__(self, names=()):
        self.names, self.started, self.closed = set(names), [], 0

    def start_for(self, trials, *, jobs):
        self.started.append((trials, jobs))

    def hardware(self):
        return H100.hardware

    def close(self):
        self.closed += 1


@pytest.fixture
def slurm(sweep, world, monkeypatch, tmp_path):
    """Return a function that runs a sweep on fake slots; it has the array, the job of a slot and the plan."""
    monkeypatch.setenv("GRPO_VRAM_CACHE", str(tmp_path / "cache"))

    def open_array(base, job_in, options, key):
        run.base, run.job, run.keys = base, job_in(tmp_path / "array"), [*run.keys, tuple(key)]
        return run.array

    def run_array(plan, *, store, versions, array, **_):
        run.plan = plan
        for trial in plan:
            store.write(TrialRecord.of(trial, versions=versions, outcome=Outcome(verdict=Verdict(status=Status.OK))))
        return ("A note about slots.",)

    real = world.parts
    world.workers = None
    world.parts = lambda: real(
        reach=lambda options: None,
        open_array=open_array,
        run=as_parts(run_array),
        simulated_workers=lambda options: world.workers,
    )

    def run(*words, **how):
        return sweep(*WORDS, "engine=slurm", *words, **how)

    run.array, run.keys = FakeArray(), []
    return run


def test_a_slot_runs_the_same_sweep_on_its_node_with_the_shared_folder(slurm, tmp_path):
    code, out, err = slurm("backend=simulated")
    assert (code, err) == (EXIT_OK, "A note about slots.\n")
    assert f"Published at file://{tmp_path}/results/lora_vs_full." in out
    job = slurm.job
    assert job == SlotJob(
        target="profiler.sweep.slot:run",
        words=job.words,
        versions=VERSIONS,
        trial_versions=VERSIONS,
        folder=str(tmp_path / "array"),
        gpus=None,
    )
    assert job.words[:2] == WORDS[:2]
    assert job.words[-3:] == ("engine=local", f'results_dir="file://{tmp_path}/results"', "jobs=1")
    assert slurm.base == tmp_path / "results" / "lora_vs_full" / "slurm"
    assert slurm.array.closed == 1


def test_the_words_of_a_slot_are_a_command_for_one_machine(slurm, world, tmp_path):
    slurm("backend=simulated", "shard=1/2")
    parts = replace(world.parts(), installed_versions=lambda: VERSIONS)
    config_of = parts.load_model_config
    sweep = prepare(read_command(slurm.job.words), parts, architecture_lookup(config_of), config_of)
    assert (str(sweep.address), sweep.options.jobs) == (f"file://{tmp_path}/results/lora_vs_full", 1)
    assert (sweep.options.engine, str(sweep.options.shard)) == ("local", "1/2")


def test_a_slot_is_given_one_environment_and_its_absolute_path(slurm, monkeypatch, world, tmp_path):
    class Workers:
        versions = replace(VERSIONS, trl="2")

        def interpreter_of(self, spec):
            return None

    world.workers = Workers()
    monkeypatch.chdir(tmp_path)
    code, _, _ = slurm("backend=simulated", "python=old", "resume=false")
    assert code == EXIT_OK
    job = slurm.job
    assert job.words[-1] == f'python="{tmp_path}/old"'
    assert "resume=false" in job.words
    assert (job.versions, job.trial_versions.trl) == (VERSIONS, "2")
    slurm("backend=simulated", "python=a,b", "max_increase=2%")
    assert slurm.job.words[-1] == f'python="{tmp_path}/b"'
    command = read_command(slurm.job.words)
    assert (command.pythons, command.faults) == ((), ())


def test_measured_trials_have_the_names_that_they_have_on_the_card_of_the_first_slot(slurm, sweep, world, tmp_path):
    code, out, _ = slurm("backend=auto", GPUS)
    assert code == EXIT_OK
    assert "backend=auto: cuda, because a GPU of slurm_gpus_per_node=h100:1 is visible." in out
    assert slurm.array.started == [(5, 8)]
    assert slurm.job.gpus == SlurmGpus(kind="h100", count=1)
    assert slurm.job.words[-1] == "jobs=null"
    world.visible = H100
    code, out, _ = sweep(*WORDS, "backend=cuda", results_dir=tmp_path / "other")  # the same store, on a machine with it
    assert (code, world.runs) == (EXIT_OK, [])
    assert "5 of 5 trials are stored already" in out


def test_what_is_stored_needs_no_slots(slurm):
    slurm("backend=simulated")
    slurm.plan = None
    code, out, _ = slurm("backend=simulated")
    assert (code, slurm.plan) == (EXIT_OK, None)
    assert "5 of 5 trials are stored already" in out
    assert slurm.keys[0] == slurm.keys[1]


def test_slots_of_an_earlier_start_are_named(slurm):
    slurm.array = FakeArray(["7_0", "7_1"])
    assert "2 slots of an earlier start of this command are in the queue; they go on." in slurm("backend=simulated")[1]


def test_measured_trials_need_slots_with_gpus(slurm):
    code, _, err = slurm("backend=cuda")
    assert code == EXIT_USAGE
    assert err.startswith("backend=cuda: needs a GPU, but slots have none without slurm_gpus_per_node=1.")
    assert len(err.splitlines()) == 1


def test_a_dry_run_starts_no_slots_and_knows_no_names_of_measured_trials(slurm):
    code, out, _ = slurm("backend=cuda", GPUS, "dry_run=true")
    assert (code, slurm.keys) == (EXIT_OK, [])
    assert "5 trials" in out


def test_slots_are_cancelled_if_the_command_is_interrupted_while_it_waits_for_the_first(slurm, monkeypatch):
    def interrupt(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(FakeArray, "hardware", interrupt)
    assert slurm("backend=cuda", GPUS)[0] == 130
    assert slurm.array.closed == 1
