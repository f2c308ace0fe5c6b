"""The campaign's own commands: a scripted card, recorded histories that are made up, records written by hand."""

import gc
import gzip
import json
import os
import weakref
from dataclasses import dataclass, field, replace
from pathlib import Path

import builders
import pytest
import torch
from builders import VERSIONS
from hypothesis import given
from hypothesis import strategies as st
from scripted import CONTEXT_BYTES, TOTAL_BYTES, UUID, ScriptedCuda, ScriptedNvml
from torch.utils._python_dispatch import TorchDispatchMode

from maintenance.campaign import archive
from maintenance.campaign.command import read_command
from maintenance.campaign.compared.measured_rows import fit_of_estimate, measured_rows
from maintenance.campaign.compared.simulated import allocator_limit_bytes, kept_grids, predicted_alloc_conf
from maintenance.campaign.facts import FactTools, take_facts
from maintenance.campaign.main import CampaignParts, main
from maintenance.campaign.running import StageEnd
from maintenance.campaign.warm_step import TorchWork
from profiler.allocator import CachingAllocator, OutOfMemoryError, TraceBuilder, memory_snapshot, parse_alloc_conf
from profiler.domain.cards.card import cuda_context_bytes
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import UsageError
from profiler.domain.memory import GIB, MIB, Category, Phase
from profiler.domain.runs.outcome import Status, TrialRecord
from profiler.domain.runs.readings import PhasePeak
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.trial import Backend, Rollout, TrialSpec, Tuning
from profiler.measurement.driver.nvml import GpuProcess, NvmlTrouble
from profiler.measurement.driver.visible import VisibleGpu, VisibleGpus
from profiler.storage.stores.record_store import RecordStore
from profiler.worker.cuda.measured import Measured

PID = 7
KERNELS_BYTES = 90 * MIB
OTHERS_BYTES = 100 * MIB
WORKSPACE_BYTES = 32 * MIB
H100 = VisibleGpu(uuid=UUID, name="NVIDIA H100 80GB HBM3", memory_bytes=81_559 * MIB)


@dataclass
class LoadingCuda(ScriptedCuda):
    """Kernels that are loaded take memory next to torch's."""

    begun: bool = False
    kernels_bytes: int = 0

    def used_bytes(self):
        return super().used_bytes() + self.kernels_bytes


@dataclass
class ScriptedWork:
    cuda: LoadingCuda
    done: list = field(default_factory=list)

    def begin(self):
        self.done.append("begin")
        self.cuda.begun = True

    def product(self):
        self.done.append("product")
        self.cuda.allocate(6 * MIB)
        self.cuda.allocate(WORKSPACE_BYTES)
        self.cuda.free(6 * MIB)
        return 6 * MIB

    def training_step(self):
        self.done.append("training_step")
        self.cuda.kernels_bytes += KERNELS_BYTES
        self.cuda.allocate(WORKSPACE_BYTES)


class Card:
    def __init__(self):
        self.cuda = LoadingCuda(others_bytes=OTHERS_BYTES)
        self.work = ScriptedWork(self.cuda)
        self.nvml = ScriptedNvml(
            used_bytes=lambda: self.cuda.used_bytes() if self.cuda.begun else OTHERS_BYTES,
            listed=lambda: (GpuProcess(pid=PID, used_bytes=self.cuda.used_bytes() - OTHERS_BYTES),),
        )

    def facts(self):
        tools = FactTools(
            cuda=self.cuda,
            nvml=self.nvml,
            work=self.work,
            own_processes=lambda: frozenset({PID}),
            cuda_version="13.0",
            versions=VERSIONS,
        )
        return take_facts(UUID, tools)


# ---- facts -----------------------------------------------------------------------------------------------------------


def test_the_context_grows_with_the_kernels_of_a_warm_step():
    facts = Card().facts()
    assert [one.context_bytes for one in facts.readings] == [
        CONTEXT_BYTES,
        CONTEXT_BYTES,
        CONTEXT_BYTES + KERNELS_BYTES,
    ]
    assert facts.used_before_bytes == OTHERS_BYTES
    assert (facts.total_bytes, facts.driver_version, facts.cuda_version) == (TOTAL_BYTES, "580.65.06", "13.0")


def test_the_workspace_is_the_memory_of_a_product_without_its_tensors():
    facts = Card().facts()
    assert (facts.cublas_workspace_bytes, facts.cublas_workspace_kept_bytes) == (WORKSPACE_BYTES, WORKSPACE_BYTES)


def test_three_metrics_stand_side_by_side_at_each_instant():
    facts = Card().facts()
    last = facts.readings[-1]
    assert last.reserved_bytes == 6 * MIB + 2 * WORKSPACE_BYTES - 6 * MIB
    assert last.mem_get_info_used_bytes == last.nvml_device_bytes
    assert last.nvml_process_bytes == last.nvml_device_bytes - OTHERS_BYTES
    assert facts.not_read == {}


def test_the_work_is_work_that_torch_can_do_and_keeps_nothing():
    work = TorchWork(torch.device("cpu"))
    made = []

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            made.append((func, weakref.ref(result.untyped_storage()) if isinstance(result, torch.Tensor) else None))
            return result

    with Seen():
        assert work.product() == 3 * 1024 * 1024 * 2
        work.training_step()
    done = {func for func, _ in made}
    assert {torch.ops.aten.mm.default, torch.ops.aten._fused_adamw_.default} <= done
    gc.collect()
    assert not [func for func, kept in made if kept is not None and kept() is not None]


def test_without_a_driver_the_facts_are_torchs_and_say_what_is_missing():
    card = Card()
    card.nvml.broken = dict.fromkeys(("memory", "processes", "driver_version"), NvmlTrouble.ABSENT)
    facts = card.facts()
    assert (facts.driver_version, facts.readings[0].context_bytes, facts.readings[0].nvml_device_bytes) == (None,) * 3
    assert set(facts.not_read) == {"device memory", "process memory"}
    assert card.work.done == ["begin", "product", "training_step"]


@pytest.fixture
def campaign(tmp_path, capsys):
    """Runs a command against a made-up card; gives exit code, lines and standard error."""

    def run(*words, gpus=(H100,), versions=VERSIONS, driver="580.65.06", **parts):
        note = "" if gpus else "the driver does not answer"
        visible = VisibleGpus(gpus=tuple(gpus), note=note, driver_version=driver)
        given = CampaignParts(visible_gpus=lambda: visible, installed_versions=lambda: versions, **parts)
        code = main([str(word) for word in words], parts=given)
        out, err = capsys.readouterr()
        return code, out.splitlines(), err

    return run


def test_facts_are_kept_and_not_taken_twice(campaign, tmp_path):
    asked, path = [], tmp_path / "facts" / "nvidia-h100-80gb-hbm3-580-65-06.json"

    def facts_of(uuid):
        asked.append(uuid)
        return Card().facts()

    for _ in range(2):
        code, lines, _ = campaign("facts", tmp_path, facts_of=facts_of)
        assert code == 0
        assert lines[-1] == f"Kept in {path}."
    assert asked == [UUID]
    kept = json.loads(path.read_text())
    assert (kept["name"], kept["versions"]["torch"]) == ("NVIDIA H100 80GB HBM3", VERSIONS.torch)
    assert kept["readings"][2]["context_bytes"] == CONTEXT_BYTES + KERNELS_BYTES


def test_another_driver_has_facts_of_its_own(campaign, tmp_path):
    for driver in ("580.65.06", "590.1"):
        campaign("facts", tmp_path, driver=driver, facts_of=lambda uuid: Card().facts())
    assert len(list((tmp_path / "facts").iterdir())) == 2


# ---- which card ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["facts", "x"], ["allocator_truth", "full", "x"], ["stage", "A", "x"]])
def test_without_a_gpu_there_is_one_sentence_and_2(campaign, words):
    code, lines, err = campaign(*words, gpus=())
    assert (code, lines) == (2, [])
    assert err.startswith("card=none: the campaign needs a GPU, but the driver does not answer. ")
    assert err.count("\n") == 1


def test_a_torch_without_cuda_is_no_gpu(campaign):
    code, _, err = campaign("facts", "x", versions=replace(VERSIONS, torch="2.13.0+cpu"))
    assert code == 2
    assert "torch 2.13.0+cpu is a build without CUDA, though NVIDIA H100 80GB HBM3 is visible" in err


def test_an_unknown_word_is_reported_in_one_sentence(campaign):
    code, _, err = campaign("facts")
    assert code == 2
    assert err.endswith("Write: scripts/campaign.sh list\n")


# ---- the allocator's truth -------------------------------------------------------------------------------------------


def snapshot():
    builder = TraceBuilder()
    builder.enter(Phase.LOAD)
    builder.allocate(5 * MIB, Category.WEIGHTS)
    builder.free(builder.allocate(12 * MIB, Category.ACTIVATIONS))
    made = memory_snapshot(builder.finished(), capacity_bytes=None)
    for entry in made["device_traces"][0]:
        entry["frames"] = [{"name": "a stack", "filename": "of/python.py", "line": 1}] * 30
    return made


class Recording:
    def __init__(self, outcome, history=None):
        self.outcome = outcome
        self.history = history or snapshot()
        self.specs = []

    def __call__(self, spec, uuid):
        assert uuid == UUID
        self.specs.append(spec)
        return Measured(outcome=self.outcome, snapshot=self.history)


OK = builders.outcome_of(peak_reserved_bytes=20 * MIB)


@pytest.mark.parametrize("tuning", [Tuning.FULL, Tuning.LORA])
def test_a_history_is_kept_once_without_its_stacks_and_replays_equal(campaign, tmp_path, tuning):
    record = Recording(OK)
    for _ in range(2):
        code, lines, _ = campaign("allocator_truth", tuning, tmp_path, record=record)
        assert code == 0
        assert "json.gz: equal, over 6 entries." in lines[0]
    (spec,) = record.specs
    assert (spec.tuning, spec.model, spec.backend, spec.gpu) == (tuning, "qwen2.5-0.5b", Backend.CUDA, None)
    kept = json.loads(gzip.decompress((tmp_path / "allocator_truth" / f"{tuning}.json.gz").read_bytes()))
    assert set(kept["device_traces"][0][0]) == {"action", "addr", "size", "stream"}
    assert kept["counted_peak_reserved_bytes"] == 20 * MIB


def test_a_history_that_the_model_does_not_follow_is_reported_with_the_place(campaign, tmp_path):
    history = snapshot()
    history["device_traces"][0][0]["size"] = 22 * MIB
    code, lines, _ = campaign("allocator_truth", "full", tmp_path, record=Recording(OK, history))
    assert code == 0
    assert "NOT equal" in lines[0]
    assert "entry 0, segment_alloc of 23068672" in lines[-1]
    assert "no segment of this size is there afterwards" in lines[-1]


def test_the_history_of_a_trial_that_did_not_end_well_is_not_kept(campaign, tmp_path):
    record = Recording(builders.failed(Status.CONTENDED, "Another program took 4 GiB."))
    code, _, err = campaign("allocator_truth", "full", tmp_path, record=record)
    assert (code, err) == (3, "The trial that was to be recorded ended as contended: Another program took 4 GiB.\n")
    assert not list(tmp_path.rglob("*.gz"))


# ---- side by side ----------------------------------------------------------------------------------------------------


def keep(folder, name, outcome, **spec):
    given = TrialSpec(**({"backend": Backend.CUDA, "gpu": None, "model": "qwen2.5-0.5b"} | spec))
    record = TrialRecord(trial_id=name, grid="g", label="l", spec=given, versions=VERSIONS, outcome=outcome)
    RecordStore(folder).write(record)


def peaks(rollout_bytes):
    return builders.outcome_of(
        peak_allocated_bytes=9000,
        peak_reserved_bytes=10_000,
        phases=(
            PhasePeak(phase=Phase.ROLLOUT, peak_allocated_bytes=rollout_bytes, peak_reserved_bytes=10_000),
            PhasePeak(phase=Phase.BACKWARD, peak_allocated_bytes=9000, peak_reserved_bytes=10_000),
        ),
    )


def test_both_rollouts_side_by_side(campaign, tmp_path):
    keep(tmp_path, "a", peaks(1000), rollout=Rollout.GENERATE)
    keep(tmp_path, "b", peaks(1010), rollout=Rollout.SYNTHETIC)
    keep(tmp_path, "c", peaks(1010), rollout=Rollout.SYNTHETIC, seed=1)
    code, lines, _ = campaign("rollouts", tmp_path, gpus=())
    assert code == 0
    assert lines == [
        "qwen2.5-0.5b, full, lengths ragged: generated ended as ok, synthetic as ok.",
        "  peak allocated: 9000 bytes generated, 9000 bytes synthetic, equal",
        "  peak reserved: 10000 bytes generated, 10000 bytes synthetic, equal",
        "  peak device: not known generated, not known synthetic, not comparable",
        "  in rollout: 1000 bytes generated, 1010 bytes synthetic, +10 bytes (+1.000%)",
    ]


def test_what_looking_costs(campaign, tmp_path):
    for period, times in (("null", (1.0, 3.0)), ("0.1", (2.0, 4.0))):
        folder = tmp_path / period / "logprobs"
        for number, time_s in enumerate(times):
            sampled = None if period == "null" else float(period)
            outcome = builders.outcome_of(step_time_s=time_s, sample_period_s=sampled)
            keep(folder, f"t{number}", outcome, seed=number)
    code, lines, _ = campaign("looking", tmp_path / "null" / "logprobs", tmp_path / "0.1" / "logprobs", gpus=())
    assert code == 0
    assert lines == [
        "no samples: step time 2.000 s, 1.000 to 3.000 s in 2 trials.",
        "a sample every 0.1 s: step time 3.000 s, 2.000 to 4.000 s in 2 trials.",
    ]


# ---- the last stage: the same trials simulated, and the thresholds ---------------------------------------------------


def on_card(**spec):
    """A measured trial that fits, twice as large as its simulation will be in `tiny_simulation`."""
    peaks_of = {"peak_allocated_bytes": 9000, "peak_reserved_bytes": 10_000, "peak_phase": Phase.BACKWARD}
    return builders.outcome_of(gpu_name="NVIDIA H100 80GB HBM3", gpu_memory_bytes=80 * GIB, **peaks_of, **spec)


class Simulation:
    """Answers every trial with one percent more than was measured."""

    def __init__(self):
        self.plans = []

    def __call__(self, plan, store, versions):
        self.plans.append(plan)
        outcome = builders.changed(on_card(), peak_allocated_bytes=9090, peak_reserved_bytes=10_400)
        for trial in plan:
            record = TrialRecord.of(trial, versions=versions, outcome=outcome)
            store.write(record)


def test_what_was_measured_is_simulated_once_in_the_same_folder(campaign, tmp_path):
    grid = tmp_path / "logprobs"
    keep(grid, "a", on_card())
    keep(grid, "b", builders.outcome_of(Status.IMPLIED, gpu_name="NVIDIA H100 80GB HBM3"), optim=Optimizer.SGD)
    keep(grid, "c", builders.outcome_of(Status.FAILED, gpu_name="NVIDIA H100 80GB HBM3"), seed=1)
    keep(tmp_path / "looking" / "0.1" / "logprobs", "d", on_card(), seed=2)
    keep(tmp_path / "rollouts" / "logprobs", "e", builders.changed(on_card(), gpu_name="NVIDIA X1"))
    simulate = Simulation()
    for _ in range(2):
        code, lines, _ = campaign("simulate", tmp_path, gpus=(), simulate=simulate)
        assert code == 0
    assert lines == ["1 measured trials are simulated.", "NVIDIA X1 is not a card that can be simulated."]
    assert [len(plan) for plan in simulate.plans] == [1, 0, 0, 0]
    (trial,) = simulate.plans[0]
    assert (trial.spec.backend, trial.spec.gpu, trial.spec.seed) == (Backend.SIMULATED, "h100-80gb", 0)
    assert len(RecordStore(grid).read_all()) == 4


CAPPED = "NVIDIA H100 80GB HBM3 capped to 24 GiB"


def test_a_capped_card_is_predicted_as_what_ran_on_it(campaign, tmp_path):
    grid = tmp_path / "lora_vs_full"
    keep(grid, "a", on_card())
    keep(grid, "b", builders.changed(on_card(), gpu_name=CAPPED, peak_allocated_bytes=8000), gpu="rtx-4090-24gb")
    keep(grid, "c", builders.outcome_of(Status.IMPLIED, gpu_name=CAPPED), gpu="rtx-4090-24gb", seed=1)
    simulate = Simulation()
    campaign("simulate", tmp_path, gpus=(), simulate=simulate)
    (plan,) = simulate.plans
    assert {trial.spec.gpu for trial in plan} == {"h100-80gb"}
    assert sorted(bool(trial.spec.alloc_conf) for trial in plan) == [False, True]
    rows = measured_rows(tmp_path)
    assert list(rows.measured_allocated_bytes) == [9000, 8000]
    assert list(rows.simulated_allocated_bytes) == [9090, 9090]
    assert list(rows.gpu.fillna("")) == ["", "rtx-4090-24gb"]
    # Estimated with the kernels that ran, which are those of the whole card.
    assert rows.estimated_allocated_bytes[0] == rows.estimated_allocated_bytes[1]
    assert set(kept_grids(tmp_path)) == {"lora_vs_full"}
    assert {record.outcome.status for record in kept_grids(tmp_path)["lora_vs_full"]} == {Status.OK}


def test_the_limit_of_a_capped_card_by_hand():
    # 24,207 MiB of the card less 484 MiB, the context that is assumed of its generation.
    assert allocator_limit_bytes("rtx-4090-24gb") == 24_875_368_448
    h100 = KNOWN_GPUS["h100-80gb"]
    share = predicted_alloc_conf("expandable_segments:True", "rtx-4090-24gb", h100, Backend.EMULATED)
    assert share == f"expandable_segments:True,per_process_memory_fraction:{24_875_368_448 / h100.memory_bytes!r}"
    assert predicted_alloc_conf("", None, h100, Backend.EMULATED) == ""


@pytest.mark.parametrize(
    ("allocated", "reserved", "cap", "fit"),
    [
        (24_875_368_448, 24_875_368_448, "rtx-4090-24gb", "fits"),
        (24_875_368_448, 24_875_368_449, "rtx-4090-24gb", "tight"),
        (24_875_368_449, 24_875_368_449, "rtx-4090-24gb", "does not fit"),
        (24_875_368_449, 24_875_368_449, None, "fits"),
    ],
)
def test_the_verdict_of_an_estimate_is_that_of_the_limit(allocated, reserved, cap, fit):
    sizes = {"estimated_peak_allocated_bytes": allocated, "estimated_peak_reserved_bytes": reserved}
    assert fit_of_estimate({"gpu_name": CAPPED, "gpu": cap, **sizes}) == fit


LARGER = [gpu for gpu in KNOWN_GPUS.values() if gpu.memory_bytes > 60 * GIB]


@given(host=st.sampled_from(LARGER), cap=st.sampled_from([one for one in KNOWN_GPUS.values() if one not in LARGER]))
def test_the_simulated_allocator_stops_at_the_limit_of_the_cap(host, cap):
    conf = predicted_alloc_conf("", cap.name, host, Backend.SIMULATED)
    config = parse_alloc_conf(conf, torch_version="2.11.0")
    left = host.memory_bytes - cuda_context_bytes(host.compute_capability)
    limit = allocator_limit_bytes(cap.name) // (2 * MIB) * 2 * MIB
    CachingAllocator(capacity_bytes=left, config=config).allocate(limit - 2 * MIB)
    with pytest.raises(OutOfMemoryError):
        CachingAllocator(capacity_bytes=left, config=config).allocate(limit + 2 * MIB)


def test_the_python_of_predictions_is_named_by_a_key(campaign, tmp_path):
    keep(tmp_path / "logprobs", "a", on_card())
    asked, given_workers = [], []

    def workers_of(backend, python):
        asked.append((backend, python))
        return Workers(versions=replace(VERSIONS, torch="2.11.0+cu130"))

    def simulate(plan, store, versions, *, workers):
        given_workers.append((workers, versions.torch))
        Simulation()(plan, store, versions)

    code, lines, _ = campaign(
        "emulate", tmp_path, "python=/x/bin/python", gpus=(), workers_of=workers_of, simulate=simulate
    )
    assert (code, lines) == (0, ["1 measured trials are emulated."])
    assert asked == [(Backend.EMULATED, Path("/x/bin/python"))]
    assert [torch for _, torch in given_workers] == ["2.11.0+cu130"]
    assert campaign("thresholds", tmp_path, "python=/x", gpus=())[0] == 2


@dataclass
class Workers:
    versions: object


def test_the_thresholds_are_judged_over_all_folders(campaign, tmp_path):
    keep(tmp_path / "card" / "logprobs", "a", on_card())
    code, lines, _ = campaign("thresholds", tmp_path, gpus=())
    assert (code, lines[0]) == (0, "No trial here was both measured and simulated.")
    campaign("simulate", tmp_path, gpus=(), simulate=Simulation())
    code, lines, _ = campaign("thresholds", tmp_path, gpus=())
    assert code == 0
    assert "allocated 0.00 GiB measured, 0.00 GiB simulated (+1.00%)" in lines[0]
    assert "allocated, median error: 1.0 % (at most 1.0 %)" in lines
    assert "reserved, median error: 4.0 % (at most 3.0 %), does not hold" in lines


def test_a_pair_of_other_versions_is_named_and_not_counted(campaign, tmp_path):
    keep(tmp_path / "logprobs", "a", on_card())
    newer = replace(VERSIONS, torch="2.14.0+cpu")
    campaign("simulate", tmp_path, gpus=(), simulate=Simulation(), versions=newer)
    _, lines, _ = campaign("thresholds", tmp_path, gpus=())
    assert lines[0].endswith("not counted, because the versions differ: torch 2.13.0 and 2.14.0+cpu")
    assert "allocated, median error: not measured (at most 1.0 %)" in lines


# ---- the archive -----------------------------------------------------------------------------------------------------


def stage_that_writes(size_bytes):
    def run_stage(stage, folder, *, limit_s, more, say):
        (folder / "g" / "records").mkdir(parents=True, exist_ok=True)
        (folder / "g" / "records" / "a.json").write_bytes(os.urandom(size_bytes))
        (folder / "g" / "records" / "b.lock").touch()
        (folder / "g" / "report.html").touch()
        (folder / "site").mkdir(exist_ok=True)
        (folder / "site" / "trl.py").touch()
        return StageEnd(exit_code=3, line="Stage A is not finished.")

    return run_stage


def test_a_stage_is_packed_at_its_end_in_parts_and_unpacked_in_another_way(campaign, tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "PART_BYTES", 1000)
    here, there, parts = tmp_path / "here", tmp_path / "there", tmp_path / "parts"
    code, lines, _ = campaign("stage", "A", here, f"archive={parts}", run_stage=stage_that_writes(2500))
    assert (code, lines[-1]) == (3, "Stage A is not finished.")
    assert sorted(path.name for path in parts.iterdir()) == [f"campaign.tar.gz.part0{n}" for n in range(3)]
    assert max(path.stat().st_size for path in parts.iterdir()) == 1000
    kept = (here / "g" / "records" / "a.json").read_bytes()
    assert archive.unpack(parts, there) == 1
    assert [str(path.relative_to(there)) for path in there.rglob("*") if path.is_file()] == ["g/records/a.json"]
    assert (there / "g" / "records" / "a.json").read_bytes() == kept
    # What is there already stays, and a smaller archive leaves no part of the larger one behind.
    assert archive.unpack(parts, there) == 0
    (here / "g" / "records" / "a.json").write_bytes(b"")
    assert len(archive.pack(here, parts)) == 1
    assert len(list(parts.iterdir())) == 1


def test_the_next_stage_begins_with_the_archive(campaign, tmp_path):
    parts = tmp_path / "parts"
    campaign("stage", "A", tmp_path / "one", f"archive={parts}", run_stage=stage_that_writes(10))
    seen = []

    def look(stage, folder, **_):
        seen.extend(path.name for path in folder.rglob("*.json"))
        return StageEnd(exit_code=0, line="done")

    campaign("stage", "B", tmp_path / "two", f"archive={parts}", run_stage=look)
    assert seen == ["a.json"]


def test_a_stage_that_raises_is_packed_too(campaign, tmp_path):
    def fail(stage, folder, **_):
        (folder / "a.json").touch()
        raise KeyboardInterrupt

    code, _, err = campaign("stage", "A", tmp_path / "one", f"archive={tmp_path}/parts", run_stage=fail)
    assert code == 130
    assert err == "Interrupted. What has finished is kept; the same command continues from there.\n"
    assert archive.unpack(tmp_path / "parts", tmp_path / "two") == 1


@pytest.mark.parametrize("content", [None, b"", b"no archive"])
def test_what_is_no_archive_is_said_in_one_sentence(campaign, tmp_path, content):
    parts = tmp_path / "parts"
    parts.mkdir()
    if content is None:
        with pytest.raises(UsageError, match=r"must hold campaign\.tar\.gz\.part00"):
            archive.unpack(parts, tmp_path / "folder")
        return
    (parts / "campaign.tar.gz.part00").write_bytes(content)
    code, _, err = campaign("stage", "A", tmp_path / "folder", f"archive={parts}")
    assert code == 2
    assert err.count("\n") == 1
    assert err.startswith(f"archive={parts}: ")


def test_options_of_a_stage_are_spelled_as_in_every_command(tmp_path):
    typed = ["stage", "A", str(tmp_path), "--limit-s", "300", "--num-generations=8", "--jobs", "2"]
    assert read_command(typed) == read_command(
        ["stage", "A", str(tmp_path), "limit_s=300", "num_generations=8", "jobs=2"]
    )
    assert read_command(typed).keys == ["num_generations=8", "jobs=2"]
