"""`backend=emulated` for real: torch's CUDA build on emulated cards. Skipped without an environment that has it."""

import json
import os
import subprocess
import sys

import pytest

from profiler.domain.cards.card import cuda_context_bytes
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import NOT_EMULATED
from profiler.domain.runs.outcome import Status
from profiler.emulation.interpreter import EMULATION_VERSION
from profiler.emulation.launch import emulated_python, process_environment
from profiler.measurement.driver.visible import TEST_ON_EMULATED_DRIVER
from profiler.storage.stores.record_store import RecordStore, rank_folder
from profiler.storage.sweep_tables.tables import read_tables

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not os.environ.get("EMULATION_PYTHON"),
        reason="EMULATION_PYTHON names no Python with torch's CUDA build (python -m profiler.emulation install)",
    ),
]

SMALL = ("model=tiny", "steps=2", "max_prompt_length=16", "max_completion_length=24")
METHOD = ("tuning=lora", "optim=adamw_torch_fused", "gradient_checkpointing=true")
FULL = ("model=qwen2.5-0.5b", "tuning=full", "optim=adamw_8bit", "gradient_checkpointing=true", "rollout=synthetic")
CARD_BYTES = 84_944_093_184


def sweep(folder, *words):
    """Run a sweep in a process of its own, and return its exit code and output."""
    command = (sys.executable, "-m", "profiler.sweep", "+grid=lora_vs_full", "backend=emulated", *words)
    done = subprocess.run([*command, f"results_dir={folder}"], capture_output=True, text=True, timeout=600, check=False)
    return done.returncode, done.stdout, done.stderr


def records(folder):
    return RecordStore(folder / "lora_vs_full").read_all()


def limits(*sizes_bytes):
    """Return an axis over the most memory that torch's allocator may reserve."""
    values = ",".join(f'"per_process_memory_fraction:{size / CARD_BYTES:.5f}"' for size in sizes_bytes)
    return f"alloc_conf={values}"


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Return the folder of one trial with generated rollouts, on two cards, with the output of its sweep."""
    folder = tmp_path_factory.mktemp("emulated")
    return folder, *sweep(folder, *SMALL, *METHOD, "gpu=l40s-48gb,h100-80gb", "rollout=generate", "beta=0.04")


def test_trials_on_two_cards_have_all_phases_and_no_time(ran):
    folder, code, out, err = ran
    assert (code, err) == (0, "")
    assert "Emulated on NVIDIA L40S" in out
    assert "Emulated on NVIDIA H100 80GB HBM3" in out
    assert "Simulated" not in out
    tables = read_tables(folder / "lora_vs_full")
    runs = tables.runs
    assert set(runs["gpu_name"]) == {"NVIDIA L40S", "NVIDIA H100 80GB HBM3"}
    assert list(runs["status"]) == ["ok", "ok"]
    assert set(runs["backend"]) == {"emulated"}
    assert set(runs["emulation_version"]) == {EMULATION_VERSION}
    assert all("+cu" in version for version in runs["torch_version"])
    assert all(text.startswith(NOT_EMULATED) for text in runs["not_measured"])
    assert list(runs["emulated_values"]) == ["complete", "complete"]
    assert list(runs["steps_run"]) == [2, 2]
    times = ["step_time_s", "startup_s", "load_s", "rollout_s", "gpu_s", "sampled_max_device_bytes", "driver_version"]
    assert runs[times].isna().all(axis=None)
    assert tables.steps["time_s"].isna().all()
    phases = tables.phases.groupby("trial_id")["phase"].apply(list)
    expected = ["load", "rollout", "score", "reward", "forward", "backward", "optimizer"]
    assert all(found == expected for found in phases)
    peaks = tables.phases.groupby("trial_id")["peak_allocated_bytes"].max()
    assert peaks.equals(runs.set_index("trial_id")["peak_allocated_bytes"].sort_index())
    assert (runs["peak_device_bytes"] == runs["peak_reserved_bytes"] + runs["context_bytes"]).all()


def test_the_same_command_runs_nothing_and_a_breakdown_is_added_on_request(ran):
    folder, *_ = ran
    words = (*SMALL, *METHOD, "gpu=l40s-48gb", "rollout=generate", "beta=0.04")
    code, out, _ = sweep(folder, *words)
    assert code == 0
    assert "1 of 1 trials are stored already" in out
    before = {record.trial_id: record.outcome.peaks.allocated_bytes for record in records(folder)}
    code, out, _ = sweep(folder, *words, "breakdown=true", "snapshot=true")
    assert code == 0
    assert "are stored already" not in out
    (on_l40s,) = [record for record in records(folder) if record.spec.gpu == "l40s-48gb"]
    shares = on_l40s.outcome.breakdown.shares
    assert sum(share.size_bytes for share in shares) == on_l40s.outcome.peaks.allocated_bytes
    assert on_l40s.outcome.breakdown.largest
    assert {record.trial_id: record.outcome.peaks.allocated_bytes for record in records(folder)} == before
    assert (folder / "lora_vs_full" / "snapshots" / f"{on_l40s.trial_id}.pickle").exists()


def test_a_trial_runs_out_of_memory_in_the_phase_that_needs_more(tmp_path):
    code, out, err = sweep(tmp_path, *FULL, "steps=1", limits(1.5e9, 2.4e9, 4.2e9, 5.0e9, 6e9))
    assert (code, err) == (0, "")
    ends = {}
    for record in records(tmp_path):
        oom = record.outcome.verdict.oom
        ends[record.spec.alloc_conf] = oom.phase.value if oom else record.outcome.status.value
        assert oom is None or record.outcome.message.endswith(f"(Emulated, in {oom.phase}.)")
        assert oom is None or oom.reserved_bytes <= float(record.spec.alloc_conf.partition(":")[2]) * CARD_BYTES
    (fits,) = (each.outcome.peaks for each in records(tmp_path) if each.outcome.status is Status.OK)
    needed = [each.outcome.unlimited for each in records(tmp_path) if each.outcome.status is Status.OOM]
    assert {(each.required_allocated_bytes, each.required_reserved_bytes) for each in needed} == {
        (fits.allocated_bytes, fits.reserved_bytes)
    }
    assert [ends[name] for name in sorted(ends)] == ["load", "forward", "backward", "optimizer", "ok"]
    assert "out of memory in optimizer" in out


def test_rollout_and_score_run_out_of_memory_too(tmp_path):
    # 64 completions are generated at once, and scored with all logits.
    many = ("steps_per_generation=16", "gradient_accumulation_steps=16", "beta=0.04", "logprobs=full", "steps=1")
    code, _, _ = sweep(tmp_path, *FULL, *many, limits(2.6e9, 4e9))
    assert code == 0
    assert {record.outcome.verdict.oom.phase.value for record in records(tmp_path)} == {"rollout", "score"}


def test_a_trial_that_takes_too_long_is_ended_and_runs_again(tmp_path):
    words = (*SMALL, *METHOD)
    code, _, err = sweep(tmp_path, *words, "timeout_s=0.5")
    assert code == 3
    assert "1 of 1 trials have no answer" in err
    (record,) = records(tmp_path)
    assert record.outcome.status is Status.TIMEOUT
    assert sweep(tmp_path, *words)[0] == 0
    (record,) = records(tmp_path)
    assert record.outcome.status is Status.OK


def measured_sweep(folder, *words, cards=1, **variables):
    """Run a sweep of `backend=cuda` in the environment with torch's CUDA build, on emulated cards."""
    python = emulated_python()
    base = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    environment = process_environment(python, KNOWN_GPUS["h100-80gb"], cards=cards, base=base)
    command = (str(python.executable), "-m", "profiler.sweep", "+grid=lora_vs_full", "backend=cuda", *words)
    done = subprocess.run(
        [*command, f"results_dir={folder}"], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    if "No module named 'hydra'" in done.stderr:
        pytest.skip("this program's own packages are not installed along with torch's CUDA build")
    return done.returncode, done.stdout, done.stderr


def test_nothing_is_measured_on_an_emulated_driver(tmp_path):
    code, _, err = measured_sweep(tmp_path, *SMALL, *METHOD)
    assert code == 2
    assert "needs a GPU, but the driver is an emulated one, on which nothing can be measured" in err
    assert not list(tmp_path.iterdir())


def test_the_measured_path_caps_and_samples_the_emulated_card_in_tests(tmp_path):
    variables = {TEST_ON_EMULATED_DRIVER: "1"}
    code, _, _ = measured_sweep(tmp_path, *SMALL, *METHOD, "gpu=rtx-4090-24gb", **variables)
    assert code == 0
    tables = read_tables(tmp_path / "lora_vs_full")
    (run,) = tables.runs.to_dict("records")
    assert (run["status"], run["gpu_name"]) == ("ok", "NVIDIA H100 80GB HBM3 capped to 24 GiB")
    assert run["context_bytes"] == cuda_context_bytes((9, 0))
    assert run["sampled_max_device_bytes"] <= run["peak_device_bytes"]
    assert "emulated" in run["driver_version"]
    assert len(tables.samples) > 0


def test_ranks_in_processes_of_their_own_hold_what_one_emulated_rank_holds(tmp_path):
    """Two real processes, each on an emulated card: what they exchange is their own, as NCCL is not there."""
    words = (*FULL, "optim=adamw_torch_fused", "num_processes=2", "distributed_type=fsdp", "steps=1")
    code, _, err = measured_sweep(tmp_path / "ranks", *words, cards=2, **{TEST_ON_EMULATED_DRIVER: "1"})
    assert code == 0, err
    grid = tmp_path / "ranks" / "lora_vs_full"
    (trial,) = RecordStore(grid).read_all()
    ranks = [RecordStore(rank_folder(grid, rank)).find(trial.trial_id).outcome for rank in (0, 1)]
    assert len({rank.measured.gpu_uuid for rank in ranks}) == 2
    assert {rank.status for rank in ranks} == {Status.OK}
    assert trial.outcome.peaks.allocated_bytes == max(rank.peaks.allocated_bytes for rank in ranks)
    assert sweep(tmp_path / "alone", *words, "gpu=h100-80gb")[0] == 0
    (alone,) = records(tmp_path / "alone")
    assert ranks[0].peaks.allocated_bytes == alone.outcome.peaks.allocated_bytes


BOTH_WAYS = """
import json, sys
from profiler.config.models.lookup import builtin_architecture
from profiler.config.trials.specification import parse_point
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.emulation.card import marks_of_this_process
from profiler.worker.cuda.card_decoding import CardDecoding
from profiler.worker.cuda.real import run_real
point = json.loads(sys.argv[1])
spec = parse_point(point, architecture_of=builtin_architecture)
decoding = CardDecoding(KNOWN_GPUS[spec.gpu].chip) if sys.argv[2] == "extrapolated" else None
peaks = run_real(spec, BUILTIN_MODELS[spec.model].config, decoding=decoding).outcome.peaks
phases = [(each.phase, each.peak_allocated_bytes, each.peak_reserved_bytes) for each in peaks.phases]
print(json.dumps([phases, peaks.inactive_split_bytes, decoding and decoding.steps_extrapolated,
                  marks_of_this_process().values]))
"""


@pytest.mark.parametrize(
    "keys",
    [
        {"gpu": "a100-80gb", "per_device_train_batch_size": 8},
        {"gpu": "t4-16gb", "attn_implementation": "eager", "dtype": "float16", "bf16": False},
        {"gpu": "h100-80gb", "alloc_conf": "expandable_segments:True"},
    ],
    ids=lambda keys: keys["gpu"],
)
def test_an_extrapolated_rollout_equals_one_that_is_decoded_in_full(keys):
    """Completions of 200 tokens; the steps run until a pattern is known, once in between and at the end."""
    point = {
        "backend": "emulated",
        "model": "tiny",
        "max_prompt_length": 40,
        "max_completion_length": 200,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "steps": 3,
        **keys,
    }
    python = emulated_python()
    base = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    base |= {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "EMULATED_PROCESSES": os.devnull}
    environment = process_environment(python, KNOWN_GPUS[keys["gpu"]], base=base)
    found = []
    for way in ("in full", "extrapolated"):
        command = [str(python.executable), "-c", BOTH_WAYS, json.dumps(point), way]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        found.append(json.loads(done.stdout.splitlines()[-1]))
    in_full, extrapolated = found
    assert extrapolated[:2] == in_full[:2]
    assert (in_full[2], in_full[3], extrapolated[3]) == (None, "complete", "complete")
    assert extrapolated[2] > 200


def test_several_gpus_by_ddp_and_fsdp(tmp_path):
    words = (*FULL, "optim=adamw_torch_fused", "num_processes=4", "distributed_type=multi_gpu,fsdp", "gpu=h100-80gb")
    code, _, err = sweep(tmp_path, *words)
    assert (code, err) == (0, "")
    runs = read_tables(tmp_path / "lora_vs_full").runs.set_index("distributed_type")
    assert set(runs["status"]) == {"ok"}
    assert set(runs["num_processes"]) == {4}
    # The closed form knows both; formulas of the shards were checked with this very model.
    errors = runs["estimated_peak_allocated_bytes"] / runs["peak_allocated_bytes"] - 1
    assert errors.abs().max() < 0.02
    assert runs.loc["fsdp", "peak_allocated_bytes"] < 0.7 * runs.loc["multi_gpu", "peak_allocated_bytes"]


def test_zero_2_and_3(tmp_path):
    words = (
        *FULL,
        "optim=adamw_torch_fused",
        "num_processes=4",
        "distributed_type=deepspeed",
        "zero_stage=2,3",
        "steps=2",
    )
    code, _, err = sweep(tmp_path, *words, "beta=0")
    if "DeepSpeed is not installed" in err:
        pytest.skip("EMULATION_PYTHON has no DeepSpeed")
    assert (code, err) == (0, "")
    runs = read_tables(tmp_path / "lora_vs_full").runs.set_index("zero_stage")
    assert set(runs["status"]) == {"ok"}
    assert set(runs["deepspeed_version"]) == {"0.19.8"}
    errors = runs["estimated_peak_allocated_bytes"] / runs["peak_allocated_bytes"] - 1
    assert errors.abs().max() < 0.03
    # The optimizer's phase begins where DeepSpeed's engine steps, inside of accelerate's backward.
    phases = read_tables(tmp_path / "lora_vs_full").phases
    assert (phases[phases["phase"] == "optimizer"]["peak_allocated_bytes"] > 0).all()


def test_bitsandbytes_has_no_step_for_shards(tmp_path):
    code, out, err = sweep(tmp_path, *FULL, "num_processes=2", "distributed_type=fsdp")
    (record,) = records(tmp_path)
    assert (code, err) == (0, "")
    assert record.outcome.status is Status.UNSUPPORTED
    assert "does not have a sharding strategy registered" in record.outcome.message
    assert "unsupported" in out
