"""`python -m profiler.run` on an emulated card. Skipped without an environment that has torch's CUDA build."""

import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from profiler.domain.cards.card import cuda_context_bytes
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import GIB, MIB, NOT_EMULATED, Phase
from profiler.domain.runs.other_runs import JobRecord
from profiler.domain.runs.outcome import Status
from profiler.emulation.interpreter import VARIABLE, cache_folder
from profiler.emulation.launch import emulated_python, process_environment
from profiler.measurement.driver.visible import TEST_ON_EMULATED_DRIVER
from profiler.storage.files.typed_json import from_json
from profiler.storage.records.record_folder import SCRIPTS, RecordFolder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not os.environ.get("EMULATION_PYTHON"),
        reason="EMULATION_PYTHON names no Python with torch's CUDA build (python -m profiler.emulation install)",
    ),
]

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
LIMIT_S = 300


def run(folder, *words):
    """Run the command in a process of its own, and return its exit code, its output and the records."""
    command = (sys.executable, "-m", "profiler.run", "backend=emulated", f"results_dir={folder}", *words)
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    problems = []
    records = RecordFolder(folder / "scripts" / "matrices", SCRIPTS, notify=problems.append).read_all()
    assert not problems
    return done.returncode, done.stdout, done.stderr, records


def test_a_plain_loop_has_peaks_by_phase_in_every_file(tmp_path):
    script = str(PROGRAMS / "matrices.py")
    code, out, err, (record,) = run(tmp_path, "gpu=l40s-48gb", "snapshot=true", script, "--width=1024")
    assert (code, err) == (0, "")
    assert out.startswith("backend=emulated on NVIDIA L40S.\n")
    assert "Emulated on NVIDIA L40S (44.4 GiB): matrices.py" in out
    assert "Simulated" not in out
    assert "Measured" not in out
    # The weight of 1,024 x 1,024 floats, then its gradient, then two states of it.
    weight = 1024 * 1024 * 4
    peaks = {peak.phase.value: peak.peak_allocated_bytes for peak in record.outcome.peaks.phases}
    assert list(peaks) == ["load", "forward", "backward", "optimizer"]
    assert weight <= peaks["load"] < 1.1 * weight
    assert peaks["optimizer"] >= 4 * weight
    assert record.outcome.work.steps_run == 3
    assert record.outcome.work.parameters == 1024 * 1024
    assert record.ending is not None
    assert record.ending.by_steps
    assert record.outcome.verdict.unavailable.startswith(NOT_EMULATED)
    assert record.outcome.emulated is not None
    folder = tmp_path / "scripts" / "matrices"
    (row,) = pq.read_table(folder / "scripts.parquet").to_pylist()
    assert (row["backend"], row["emulated_values"], row["arguments"]) == ("emulated", "complete", "--width=1024")
    assert pq.read_table(folder / "script_phases.parquet")["phase"].to_pylist() == list(peaks)
    for page in ("report.html", "report.md"):
        assert "Emulated on NVIDIA L40S" in (folder / page).read_text()
    (snapshot,) = (folder / "snapshots").glob("*.pickle")
    assert pickle.loads(snapshot.read_bytes())["segments"]


def test_out_of_memory_is_an_answer_with_its_line_and_the_largest_tensors(tmp_path):
    script = PROGRAMS / "matrices.py"
    code, out, err, (record,) = run(tmp_path, "gpu=t4-16gb", str(script), "--width=40000")
    assert code == 0
    assert "torch.OutOfMemoryError" in err
    assert "profiler/" not in err.split("Traceback")[1].split("matrices.py")[0]
    assert record.outcome.status is Status.OOM
    assert record.outcome.verdict.oom is not None
    state = 40000 * 40000 * 4
    assert state <= record.outcome.verdict.oom.requested_bytes < state + 2 * MIB
    assert {held.name for held in record.largest[:2]} == {"weight", "gradient of weight"}
    lines = script.read_text().splitlines()
    number = next(number for number, line in enumerate(lines, start=1) if "optimizer.step()" in line)
    assert record.outcome.message.startswith(f"At matrices.py:{number} (optimizer.step()): CUDA out of memory")
    assert "Out of memory in optimizer of step 1" in out
    assert "Largest tensors when the allocation failed" in out


def test_eight_processes_are_rank_0_of_them(tmp_path):
    script = str(PROGRAMS / "matrices.py")
    code, out, err, (record,) = run(tmp_path, "torchrun", "--nproc_per_node=8", script, "--width=256", "--ddp")
    assert (code, record.outcome.message) == (0, ""), err
    assert "rank 0 of 8" in out
    assert record.spec.num_processes == 8
    assert record.spec.launcher == ("torchrun", "--nproc_per_node=8")
    assert record.outcome.work.steps_run == 3


def test_a_script_that_fails_keeps_its_peaks_and_ends_with_3(tmp_path):
    script = str(PROGRAMS / "matrices.py")
    code, out, err, (record,) = run(tmp_path, script, "--width=256", "--fail")
    assert code == 3
    assert "RuntimeError: on purpose" in err
    assert record.outcome.status is Status.FAILED
    assert record.outcome.peaks.allocated_bytes
    assert '(raise RuntimeError("on purpose")): RuntimeError: on purpose' in " ".join(out.split())


def test_a_script_that_takes_too_long_keeps_its_peaks(tmp_path):
    script = tmp_path / "matrices.py"
    script.write_text("import time, torch\nmade = torch.ones(1024, 1024, device='cuda')\ntime.sleep(100)\n")
    code, _, _, (record,) = run(tmp_path, "timeout_s=30", str(script))
    assert code == 3
    assert record.outcome.status is Status.TIMEOUT
    assert record.outcome.message == "the script ran longer than timeout_s=30"
    assert record.outcome.peaks.allocated_bytes == 1024 * 1024 * 4


def measured_run(folder, *words):
    """Run backend=cuda where the emulated driver passes for a real one; nothing of it is a measurement."""
    python = emulated_python()
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    environment = process_environment(python, KNOWN_GPUS["a100-40gb"], base=variables) | {TEST_ON_EMULATED_DRIVER: "1"}
    command = (str(python.executable), "-m", "profiler.run", "backend=cuda", f"results_dir={folder}", *words)
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment)
    if "ModuleNotFoundError" in done.stderr:
        pytest.skip("this program's own packages are not installed along with torch's CUDA build")
    return (
        done.returncode,
        done.stdout,
        done.stderr,
        RecordFolder(folder / "scripts" / "matrices", SCRIPTS).read_all(),
    )


def test_the_measured_path_caps_and_samples_the_emulated_card_in_tests(tmp_path):
    words = ("gpu=rtx-4090-24gb", "sample_period_s=0.001", str(PROGRAMS / "matrices.py"), "--width=1024")
    code, out, err, (record,) = measured_run(tmp_path, *words)
    assert (code, err) == (0, "")
    assert "Measured on NVIDIA A100-SXM4-40GB capped to 24 GiB" in out
    assert record.outcome.card.context_bytes == cuda_context_bytes((8, 0))
    assert record.outcome.measured is not None
    assert "emulated" in (record.outcome.measured.driver_version or "")
    assert record.outcome.measured.sampled_max_device_bytes
    assert record.outcome.emulated is None


def test_what_accelerate_launch_sets_reaches_the_script(tmp_path):
    configuration = tmp_path / "launch.yaml"
    configuration.write_text("mixed_precision: bf16\ndistributed_type: MULTI_GPU\nnum_processes: 4\nnum_machines: 1\n")
    script = tmp_path / "matrices.py"
    script.write_text(
        "import os, accelerate\n"
        "found = accelerate.Accelerator()\n"
        "print(found.num_processes, found.mixed_precision, os.environ['LOCAL_RANK'])\n"
    )
    code, out, err, (record,) = run(tmp_path, "accelerate", "launch", "--config_file", str(configuration), str(script))
    assert (code, record.outcome.status) == (0, Status.OK), err
    assert "\n4 bf16 0\n" in out
    assert record.spec.num_processes == 4


def run_job(folder, *words, limit_s=LIMIT_S):
    """Run a command with all its processes on the emulated driver; return its exit code, its output and its record."""
    command = (
        sys.executable,
        "-m",
        "profiler.run",
        f"python={os.environ['EMULATION_PYTHON']}",
        f"results_dir={folder}",
    )
    done = subprocess.run((*command, *words), capture_output=True, text=True, timeout=limit_s, check=False)
    (kept,) = (folder / "jobs").glob("*/job.json")
    return done.returncode, done.stdout + done.stderr, from_json(JobRecord, json.loads(kept.read_text()))


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_a_trainer_and_a_generator_share_weights_on_one_card(tmp_path, monkeypatch, settings):
    """The generator holds what it made itself, and not the 512 MiB that the trainer sent to it."""
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", settings)
    code, out, record = run_job(tmp_path, "gpus=1xl40s-48gb", str(PROGRAMS / "shared_weights.py"))
    assert (code, record.status) == (0, Status.OK), out
    trainer, generator = (process for process in record.memory.processes if any(process.peak_bytes))
    assert (trainer.roles, generator.roles) == (("trains",), ("generates",))
    context = cuda_context_bytes(KNOWN_GPUS["l40s-48gb"].compute_capability)
    assert 512 * MIB < trainer.peak_bytes[0] - context < 600 * MIB
    assert 256 * MIB < generator.peak_bytes[0] - context < 400 * MIB
    assert record.memory.card_peak_bytes[0] <= trainer.peak_bytes[0] + generator.peak_bytes[0]


def test_all_ranks_of_torchrun_have_their_card_and_their_peak(tmp_path):
    words = ("torchrun", "--nproc_per_node=2", str(PROGRAMS / "matrices.py"), "--width=1024", "--ddp")
    code, out, record = run_job(tmp_path, "gpus=2xl40s-48gb", *words)
    assert (code, record.status) == (0, Status.OK), out
    ranks = {process.rank: process for process in record.memory.processes if any(process.peak_bytes)}
    assert [ranks[rank].ranks for rank in sorted(ranks)] == [2, 2]
    assert {process.roles for process in ranks.values()} == {("trains",)}
    # Each has its own card alone, and both hold the same.
    first, second = ranks[0].peak_bytes, ranks[1].peak_bytes
    assert (first[1], second[0], first[0]) == (0, 0, second[1])


def test_a_child_has_the_peaks_by_phase_of_a_script(tmp_path):
    """The recorder of a process of a job and torch's own counters, read and reset at each phase, agree to the byte."""
    words = ("python", str(PROGRAMS / "matrices.py"), "--width=1024")
    code, out, record = run_job(tmp_path, "gpus=1xl40s-48gb", *words)
    assert (code, record.status) == (0, Status.OK), out
    (process,) = (each for each in record.memory.processes if each.phases)
    code, out, _, (alone,) = run(tmp_path, "gpu=l40s-48gb", *words[1:])
    assert code == 0
    expected = [
        (peak.phase, peak.peak_allocated_bytes, peak.peak_reserved_bytes) for peak in alone.outcome.peaks.phases
    ]
    assert [(each.phase, each.allocated_bytes, each.reserved_bytes) for each in process.phases] == expected


def test_a_process_says_what_it_holds_by_category(tmp_path):
    """The weight of `matrices.py` and what AdamW makes of it, to the byte, and one workspace of cuBLAS per thread."""
    words = ("breakdown=true", "python", str(PROGRAMS / "matrices.py"), "--width=1024")
    code, out, record = run_job(tmp_path, "gpus=1xl40s-48gb", *words)
    assert (code, record.status) == (0, Status.OK), out
    (process,) = (each for each in record.memory.processes if each.phases)
    weight, shares = 1024 * 1024 * 4, {}
    for phase in process.phases:
        shares[phase.phase.value] = {share.category.value: share.size_bytes for share in phase.shares}
        assert sum(shares[phase.phase.value].values()) == phase.allocated_bytes
    kept = {"weights": weight, "optimizer_state": 2 * weight}
    assert shares["load"] == {"weights": weight, "other": 4096}  # the batch
    assert {name: shares["backward"][name] for name in kept} == kept
    assert {name: shares["optimizer"][name] for name in kept} == kept
    assert shares["backward"]["gradients"] == 2 * weight  # the new one is added to that of the step before
    assert shares["optimizer"]["gradients"] == weight
    assert shares["optimizer"]["workspace"] == weight + 2 * 8_519_680  # AdamW's denominator next to cuBLAS's
    assert "optimizer state" in out and "by category" in " ".join(out.split())
    _, out, record = run_job(tmp_path, "gpus=1xl40s-48gb", *words[1:])
    assert not any(phase.shares for each in record.memory.processes for phase in each.phases)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_of_torchrun_exchange_what_steers_their_hosts(tmp_path, ranks):
    words = ("torchrun", f"--nproc_per_node={ranks}", str(PROGRAMS / "collectives.py"))
    code, out, record = run_job(tmp_path, f"gpus={ranks}xl40s-48gb", *words)
    assert (code, record.status, record.values) == (0, Status.OK, "complete"), out
    lines = [line.split(" ", 2) for line in out.splitlines() if line.startswith("RANK ")]
    found = {int(rank): json.loads(values) for _, rank, values in lines}
    each = range(ranks)
    assert sorted(found) == list(each)
    for rank, values in found.items():
        product = 1.5 * 2.5 * (3.5 if ranks == 3 else 1)
        assert values["SUM"] == [sum(1.5 + other for other in each), 2.0 * ranks]
        assert values["MAX"] == [0.5 + ranks, 2.0]
        assert values["AVG"] == [sum(1.5 + other for other in each) / ranks, 2.0]
        assert values["PRODUCT"] == [product, 2.0**ranks]
        assert values["all_gather"] == [[other, other * other] for other in each]
        assert values["ragged"] == [[other] * (3 + other) + [-1] * (ranks - 1 - other) for other in each]
        assert values["broadcast"] == 10.0 * ranks
        assert values["objects"] == ["of rank 1"] * 2
        assert values["gathered objects"] == [{"rank": other, "text": "x" * (other + 1)} for other in each]
        assert values["reduce_scatter"] == [sum(rank + 100 * other for other in each)]
        assert values["ring"] == (rank - 1) % ranks
        assert values.get("received") == (7 if rank == 1 else None)
        assert values.get("pair") == (3 if rank < 2 else None)


def test_a_rank_that_is_killed_is_named_by_the_others(tmp_path):
    """Without torchrun, which may end a rank before that rank has said for whom it waits."""
    words = ("bash", str(PROGRAMS / "two_ranks.sh"), "--ends=1")
    code, out, record = run_job(tmp_path, "gpus=2xl40s-48gb", *words)
    assert (code, record.status) == (3, Status.FAILED), out
    killed = next(process for process in record.memory.processes if process.rank == 1)
    sentence = f"Rank 1 of 2 (process {killed.pid}) has ended without ncclAllReduce, for which rank 0 waits."
    assert record.message.endswith(f"ended by {sentence}")


def test_rewards_of_all_ranks_are_gathered_in_grpo(tmp_path):
    """trl's trainer by DDP, and sharded: rank r adds r to each reward, so that the mean is half above the own one."""
    words = ("torchrun", "--nproc_per_node=2", str(PROGRAMS / "grpo_ranks.py"))
    for more in ((), ("--fsdp",)):
        code, out, record = run_job(tmp_path, "gpus=2xl40s-48gb", *words, *more)
        assert (code, record.status) == (0, Status.OK), out
        lines = [line.split(" ", 2) for line in out.splitlines() if line.startswith("RANK ")]
        found = {int(rank): json.loads(values) for _, rank, values in lines}
        means = {rank: values["own"] for rank, values in found.items()}
        assert means[1] != means[0]
        for values in found.values():
            assert values["reward"] == pytest.approx(sum(means.values()) / 2)
            assert values["num_tokens"] == found[0]["num_tokens"]
        phases = [[each.phase.value for each in one.phases] for one in record.memory.processes if one.phases]
        assert phases == [["load", "rollout", "reward", "forward", "backward", "optimizer"]] * 2


def needs(package: str) -> None:
    asked = [
        os.environ["EMULATION_PYTHON"],
        "-c",
        f"import importlib.metadata; importlib.metadata.version('{package}')",
    ]
    if subprocess.run(asked, capture_output=True, check=False).returncode:
        pytest.skip(f"that Python has no {package} (emulated_environments/{package}.txt)")


def test_workers_of_ray_are_part_of_the_run(tmp_path, monkeypatch):
    """An actor that is killed keeps its peaks: they are what torch said in it."""
    needs("ray")
    monkeypatch.setenv(VARIABLE, str(cache_folder()))  # not that of the new home
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    code, out, record = run_job(tmp_path, "gpus=1xl40s-48gb", "python", str(PROGRAMS / "ray_actors.py"))
    assert (code, record.status) == (0, Status.OK), out
    gpus, trained, scored = json.loads(next(line for line in out.splitlines() if line.startswith("FOUND"))[6:])
    workers = {process.command: process for process in record.memory.processes if process.phases}
    assert gpus == 1
    assert {name: max(phase.allocated_bytes for phase in one.phases) for name, one in workers.items()} == {
        "ray::Trainer.step": trained,
        "ray::score": scored,
    }
    assert workers["ray::Trainer.step"].roles == ("trains",)
    assert not (tmp_path / "home" / ".ray").exists()
    with subprocess.Popen(["bash", "-c", "exec -a gcs_server sleep 600"]) as other:
        code, out, record = run_job(tmp_path, "gpus=1xl40s-48gb", "python", str(PROGRAMS / "ray_actors.py"))
        other.kill()
    assert (code, record.status) == (3, Status.FAILED)
    assert f"A Ray cluster is running already (process {other.pid}), and its processes" in record.message


def test_verl_trains_and_generates_on_one_card(tmp_path, monkeypatch):
    """Two steps by its own command. Peaks are those that verl prints, and nothing that it loads is on this machine."""
    needs("verl")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, str(cache_folder()))
    monkeypatch.setenv("HOME", str(tmp_path))
    code, out, record = run_job(tmp_path, "gpus=1xh100-80gb", "bash", str(PROGRAMS / "verl_grpo.sh"), limit_s=900)
    assert (code, record.status) == (0, Status.OK), out
    trainer, engine = (process for process in record.memory.processes if process.phases)
    assert (trainer.roles, engine.roles) == (("trains",), ("generates",))
    phases = {process.pid: {each.phase.value: each for each in process.phases} for process in (trainer, engine)}
    assert list(phases[trainer.pid]) == ["load", "score", "forward", "backward", "optimizer", "sync"]
    assert list(phases[engine.pid]) == ["load", "rollout", "sync"]
    for name, kind in (("allocated", "allocated_bytes"), ("reserved", "reserved_bytes")):
        printed = [float(size) * GIB for size in re.findall(rf"max_memory_{name}_gb:([0-9.]+)", out)]
        assert len(printed) == 2  # of step 1 before the weights are sent, and with them
        assert max(printed) == max(getattr(each, kind) for each in trainer.phases)
    assert all(each.allocated_bytes <= each.reserved_bytes for each in (*trainer.phases, *engine.phases))
    assert sum(process.peak_bytes[0] for process in (trainer, engine)) > record.memory.card_peak_bytes[0]  # it slept
    assert {phrase.partition(" (")[0] for phrase in record.substitutes} == {
        f"data set {tmp_path}/data/gsm8k/train.parquet",
        f"data set {tmp_path}/data/gsm8k/test.parquet",
        *(f"{kind} of Qwen/Qwen2.5-0.5B-Instruct" for kind in ("tokenizer", "weights", "files")),
        "package flash-attn",
    }
    assert {path.name for path in tmp_path.iterdir() if path.name[0] != "."} == {"jobs", "outputs"}  # Hydra's


def test_verl_collects_an_adapter_to_send(tmp_path):
    """Two matrices for each of seven modules of two layers. With peft 0.21 there were none, and its engine failed."""
    needs("verl")
    script = str(PROGRAMS / "verl_adapter.py")
    code, out, err, _ = run(tmp_path, "gpu=h100-80gb", "torchrun", "--nproc_per_node=2", script)
    assert code == 0, out + err
    assert "[28, 28]" in out.splitlines()


def test_one_worker_of_verl_speaks_for_two(tmp_path, monkeypatch):
    """The trainer's peaks are those of both, and the engine's while it loads. It generates the rows of both."""
    needs("verl")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, str(cache_folder()))
    monkeypatch.setenv("HOME", str(tmp_path))
    words = ("bash", str(PROGRAMS / "verl_grpo.sh"), "trainer.n_gpus_per_node=2")
    both, alone = (
        run_job(tmp_path, "gpus=2xh100-80gb", f"ranks={number}", *words, limit_s=900)[1:] for number in (2, 1)
    )
    assert [record.status for _, record in (both, alone)] == [Status.OK, Status.OK]
    phases = [
        {
            (process.roles, phase.phase, phase.allocated_bytes, phase.reserved_bytes)
            for process in record.memory.processes
            for phase in process.phases
            if "trains" in process.roles or phase.phase is Phase.LOAD
        }
        for _, record in (both, alone)
    ]
    assert phases[0] == phases[1]
    assert [sum(bool(each.phases) for each in record.memory.processes) for _, record in (both, alone)] == [4, 2]
    assert "Of 2 equal workers the first worker ran (ranks=1), with one engine" in " ".join(alone[0].split())
