"""`VramCallback` in a real trainer of trl on the CPU, with a scripted card."""

import os
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from datasets import Dataset
from scripted import CONTEXT_BYTES, TOTAL_BYTES, UUID, CudaMemoryError, ScriptedCuda, ScriptedNvml
from torch.optim.optimizer import register_optimizer_step_pre_hook
from transformers import Trainer, TrainerCallback, integrations
from trl import GRPOConfig, GRPOTrainer

import profiler
from maintenance.benchmark.rows.sent import read_row
from profiler.callback import recording
from profiler.callback.recording import Instruments
from profiler.domain.errors import EXIT_USAGE, UsageError
from profiler.domain.memory import GIB, Phase
from profiler.domain.runs.other_runs import NamedCard, Watcher
from profiler.domain.runs.outcome import Status
from profiler.measurement.driver.nvml import GpuProcess
from profiler.measurement.driver.visible import VisibleGpu, VisibleGpus
from profiler.share.main import main as share
from profiler.storage.files.live_counters import LIVE_FOLDER, published
from profiler.storage.records.record_folder import MONITORED, RecordFolder
from profiler.substitutes import SubstituteOptions, substitutes

CARD = NamedCard(uuid=UUID, name="NVIDIA H100 80GB HBM3", memory_bytes=TOTAL_BYTES, compute_capability=(9, 0))
STEP = [Phase.ROLLOUT, Phase.SCORE, Phase.REWARD, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]


class Reports(TrainerCallback):
    """In place of TensorBoard's callback, which `report_to` makes."""

    logs: list = []  # noqa: RUF012

    def on_log(self, args, state, control, logs=None, **_):
        Reports.logs.append(dict(logs))


@dataclass
class Training:
    """A finished training and what it left."""

    folder: object
    callback: object
    cuda: ScriptedCuda
    logs: list
    live: list = field(default_factory=list)

    @property
    def record(self):
        problems = []
        (found,) = RecordFolder(self.folder, MONITORED, notify=problems.append).read_all()
        assert not problems
        return found


class Sampled(ScriptedNvml):
    """Lets a training wait until the thread of the samples has read it, so that no test depends on speed."""

    def __init__(self, **options):
        super().__init__(**options)
        self._read = threading.Semaphore(0)

    def memory(self, uuid):
        if threading.current_thread() is not threading.main_thread():
            self._read.release()
        return super().memory(uuid)

    def wait_for_a_sample(self):
        """Return once a sample has been taken that began after this call."""
        while self._read.acquire(blocking=False):
            pass
        for _ in range(2):  # The first may have begun before.
            assert self._read.acquire(timeout=600), "the thread of the samples has ended"


def nvml_of(cuda):
    return Sampled(used_bytes=cuda.used_bytes, listed=lambda: (GpuProcess(pid=os.getpid(), used_bytes=GIB),))


def instruments(cuda, card=CARD, nvml=None):
    nvml = nvml or nvml_of(cuda)
    return Instruments(cuda=cuda, nvml=nvml, card=card, sample_period_s=0.05)


def train(folder, cuda, output, reward):
    nvml = nvml_of(cuda)
    callback = profiler.VramCallback(folder / "mine", instruments=lambda: instruments(cuda, nvml=nvml))

    def rewards(completions, **_):
        nvml.wait_for_a_sample()
        cuda.context_bytes = CONTEXT_BYTES
        cuda.allocate(3 * GIB)
        cuda.free(3 * GIB)
        reward()
        return [float(len(text)) for text in completions]

    def in_optimizer(*_):
        cuda.allocate(5 * GIB)
        cuda.free(5 * GIB)

    handle = register_optimizer_step_pre_hook(in_optimizer)
    try:
        with substitutes(SubstituteOptions(with_values=True)):
            GRPOTrainer(
                model="tiny",
                reward_funcs=rewards,
                args=GRPOConfig(
                    output_dir=str(output),
                    use_cpu=True,
                    bf16=False,
                    beta=0.1,
                    per_device_train_batch_size=4,
                    num_generations=4,
                    max_completion_length=4,
                    max_steps=2,
                    logging_steps=1,
                    save_strategy="no",
                    report_to=["tensorboard"],
                    disable_tqdm=True,
                ),
                train_dataset=Dataset.from_dict({"prompt": ["one two three"] * 32}),
                callbacks=[callback],
            ).train()
    finally:
        handle.remove()
    return callback


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    folder = tmp_path_factory.mktemp("callback")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(integrations.integration_utils.INTEGRATION_TO_CALLBACK, "tensorboard", Reports)
        patch.setenv(LIVE_FOLDER, str(folder / "live"))
        Reports.logs = []
        cuda, live = ScriptedCuda(context_bytes=0), []
        callback = train(folder, cuda, folder / "out", lambda: live.extend(published(folder / "live")))
        yield Training(folder=folder / "mine", callback=callback, cuda=cuda, logs=Reports.logs, live=live)
        assert not list((folder / "live").iterdir()), "the counters of a training that has ended are withdrawn"


def test_every_phase_of_every_step_has_its_peak(training):
    peaks = training.record.outcome.measured.step_peaks
    assert [peak.phase for peak in peaks] == [Phase.LOAD, *STEP, *STEP]
    assert [peak.step for peak in peaks] == [0, *[1] * 6, *[2] * 6]
    sizes = {Phase.REWARD: 3 * GIB, Phase.OPTIMIZER: 5 * GIB}
    assert all(peak.peak_allocated_bytes == sizes.get(peak.phase, 0) for peak in peaks)
    assert all(peak.time_s is None for peak in peaks)


def test_trackers_name_the_peaks_as_documented(training):
    """trackio, Weights & Biases and TensorBoard of transformers store what this function returns."""
    steps = [integrations.integration_utils.rewrite_logs(logs) for logs in training.logs[:2]]
    for found in steps:
        assert found["train/vram/allocated_gib/optimizer"] == found["train/vram/reserved_gib"] == 5.0
        assert found["train/vram/device_gib"] == round((5 * GIB + CONTEXT_BYTES) / GIB, 4)
        assert {"train/vram/alloc_retries", "train/vram/out_of_memory"} <= found.keys()
    page = (Path(__file__).parents[2] / "docs" / "monitor.md").read_text(encoding="utf-8")
    assert "`train/vram/reserved_gib`" in page


def test_the_record_has_peaks_counts_and_the_reading_of_the_driver(training):
    record = training.record
    outcome = record.outcome
    assert (record.watcher, outcome.status, outcome.work.steps_run) == (Watcher.CALLBACK, Status.OK, 2)
    assert outcome.work.parameters == outcome.work.trainable_parameters > 0
    peaks = outcome.peaks
    assert (peaks.allocated_bytes, peaks.phase, peaks.reserved_bytes) == (5 * GIB, Phase.OPTIMIZER, 5 * GIB)
    assert peaks.device_bytes == 5 * GIB + CONTEXT_BYTES
    (gpu,) = record.gpus
    assert (gpu.name, gpu.before_bytes, gpu.peak_process_bytes) == (CARD.name, 0, GIB)
    assert gpu.peak_used_bytes <= 5 * GIB + CONTEXT_BYTES
    assert "a callback does not wait for the GPU" in outcome.verdict.unavailable
    assert "is not as expected" not in outcome.verdict.unavailable


def test_every_report_gets_the_peaks_of_its_steps(training):
    steps = [logs for logs in training.logs if "loss" in logs]
    assert len(steps) == 2
    for logs in steps:
        assert logs["vram/allocated_gib/reward"] == 3.0
        assert logs["vram/allocated_gib/optimizer"] == 5.0
        assert logs["vram/reserved_gib"] == 5.0
        assert logs["vram/alloc_retries"] == 0.0
    assert steps[1]["vram/device_gib"] == round(5 + CONTEXT_BYTES / GIB, 4)


def test_a_monitor_sees_the_counters_meanwhile(training):
    assert training.live
    assert {one.pid for one in training.live} == {os.getpid()}
    assert training.live[0].gpu_uuid == UUID


def test_the_report_is_that_of_a_trial(training):
    assert "Peak, measured: 5.00 GiB allocated, in optimizer" in (training.folder / "report.html").read_text()
    steps = pq.read_table(training.folder / "monitored_steps.parquet").to_pylist()
    assert [(row["step"], row["phase"]) for row in steps][1:7] == [(1, phase.value) for phase in STEP]
    samples = pq.read_table(training.folder / "monitored_samples.parquet")
    assert Phase.REWARD.value in samples["phase"].to_pylist()
    kinds = {path.stem.rpartition("_")[2] for path in (training.folder / "figures").iterdir()}
    assert kinds == {"gpus", "phases", "steps"}


def test_the_record_becomes_a_row_of_the_benchmark(training, capsys):
    job = ("model=tiny", "beta=0.1", "per_device_train_batch_size=4", "num_generations=4", "max_completion_length=4")
    assert share([str(training.folder), *job]) == 0
    out = capsys.readouterr().out
    row = read_row(out.splitlines()[0])
    assert [peak.size_bytes for peak in row.peaks] == [5 * GIB, 5 * GIB, 5 * GIB + CONTEXT_BYTES]
    assert (row.trainer, row.job["model"], row.job["steps"], row.card.name) == ("trl GRPOTrainer", "tiny", 2, CARD.name)
    assert "allocated 5.00 GiB: estimate -" in out
    assert share([str(training.folder), "model=qwen2.5-0.5b"]) == EXIT_USAGE


def test_nothing_stays_patched(training):
    assert "with_peaks" not in Trainer.log.__qualname__
    assert "within" not in torch.autograd.backward.__qualname__
    assert not torch.nn.modules.module._global_forward_hooks


# ---- without a training ----------------------------------------------------------------------------------------------


@pytest.fixture
def callback(tmp_path, monkeypatch):
    monkeypatch.setenv(LIVE_FOLDER, str(tmp_path / "live"))
    cuda = ScriptedCuda(retries=5)  # before the callback
    return profiler.VramCallback(tmp_path / "mine", instruments=lambda: instruments(cuda)), cuda, tmp_path / "mine"


def test_a_training_that_runs_out_of_memory_leaves_its_record(callback, monkeypatch):
    made, cuda, folder = callback
    made.on_train_begin(None, None, None, model=torch.nn.Linear(1, 1))
    made._recording.enter(Phase.FORWARD)
    with pytest.raises(CudaMemoryError) as caught:
        cuda.allocate(2 * TOTAL_BYTES)
    monkeypatch.setattr(sys, "last_value", caught.value, raising=False)
    made._end_with_the_process()
    (record,) = RecordFolder(folder, MONITORED).read_all()
    oom = record.outcome.verdict.oom
    assert (record.outcome.status, oom.phase, oom.step) == (Status.OOM, Phase.FORWARD, 1)
    assert oom.requested_bytes == 2 * TOTAL_BYTES
    assert record.outcome.message.startswith("CudaMemoryError: CUDA out of memory")
    page = (folder / "report.md").read_text()
    assert "Out of memory in forward of step 1" in page
    assert "released its cache and tried again once." in page


@pytest.mark.parametrize(
    ("growth_bytes", "says", "sizes"),
    [
        # 10.2 GiB at step 0, 1 GiB per step and 0.49 GiB of others: 80 GiB are full after (80 - 0.49 - 10.2) / 1 steps.
        (GIB, "per step (1,024 MiB to 1,024 MiB, 95 %). At this rate of growth the card is full at step 69", (13, 30)),
        (0, "per step (0 MiB to 0 MiB, 95 %).", (10, 10)),
    ],
)
def test_growth_is_said_after_20_steps_and_in_the_report(tmp_path, capsys, growth_bytes, says, sizes):
    cuda = ScriptedCuda()
    made = profiler.VramCallback(tmp_path / "mine", instruments=lambda: instruments(cuda), forecast=True)
    made.on_train_begin(None, None, None, model=torch.nn.Linear(1, 1))
    cuda.context_bytes = CONTEXT_BYTES
    said = []
    for step in range(1, 23):
        made._recording.enter(Phase.FORWARD)
        # The first step has an outlier, which no growth is.
        size_bytes = int(10.2 * GIB) + step * growth_bytes + (30 * GIB if step == 1 else 0)
        cuda.allocate(size_bytes)
        cuda.free(size_bytes)
        made._recording.enter(Phase.OPTIMIZER)
        made.on_step_end(None, None, None)
        said += [(step, line) for line in capsys.readouterr().err.splitlines()]
    made.on_train_end(None, None, None)
    ((step, line),) = said
    assert step == 20
    assert line.startswith(f"VramCallback: Measured memory has {sizes[0]}.2 GiB to {sizes[1]}.2 GiB, ")
    assert says in line
    assert says in (tmp_path / "mine" / "report.md").read_text()


def test_an_error_of_the_callback_does_not_end_the_training(callback, monkeypatch, capsys):
    made, cuda, folder = callback

    def fail():
        raise RuntimeError("no counters")

    monkeypatch.setattr(cuda, "synchronize", fail)
    made.on_train_begin(None, None, None, model=torch.nn.Linear(1, 1))
    made.on_train_end(None, None, None)
    sentence = "VramCallback has stopped recording (RuntimeError: no counters); the training goes on.\n"
    assert capsys.readouterr().err == sentence
    assert not folder.exists()
    made._recording._counters.stop()


def test_each_rank_has_a_record_and_all_share_the_report(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK", rank)
        made = profiler.VramCallback(tmp_path / "mine")
        made.on_train_begin(None, None, None, model=torch.nn.Linear(1, 1))
        made.on_train_end(None, None, None)
    records = RecordFolder(tmp_path / "mine", MONITORED).read_all()
    assert [record.run_id.partition("-rank")[2] for record in records] == ["1", "0"]
    page = (tmp_path / "mine" / "report.md").read_text(encoding="utf-8")
    assert ", rank 0, " in page
    assert ", rank 1, " in page
    assert not (tmp_path / "mine" / ".lock").exists()


@pytest.mark.parametrize(("local_rank", "visible", "device"), [("1", 2, 1), ("1", 1, 0), ("", 2, 0), ("x", 2, 0)])
def test_a_rank_reads_the_gpu_that_the_launcher_gives_it(local_rank, visible, device, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    seen = VisibleGpus(
        gpus=tuple(VisibleGpu(uuid=f"GPU-{n}", name="c", memory_bytes=1) for n in range(visible)), note=""
    )
    monkeypatch.setattr(recording, "visible_gpus", lambda: seen)
    monkeypatch.setattr(recording, "PynvmlDriver", lambda: None)
    found = recording.instruments_of_this_machine(0.1)
    assert (found.card.uuid, found.cuda._device) == (f"GPU-{device}", device)


def test_without_a_gpu_the_record_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    made = profiler.VramCallback(tmp_path / "mine")
    made.on_train_begin(None, None, None, model=torch.nn.Linear(1, 1))
    made.on_train_end(None, None, None)
    (record,) = RecordFolder(tmp_path / "mine", MONITORED).read_all()
    assert (record.gpus, record.outcome.peaks.allocated_bytes) == ((), None)
    assert "GPU: none is visible" in record.outcome.verdict.unavailable


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("file/x",), "folder=file/x: results cannot be written there (file is not a folder)."),
        (("",), "folder=: must be a folder."),
        (("a\0b",), "folder=a\\x00b: "),
        (("~nosuchuser/x",), "folder=~nosuchuser/x: cannot be used"),
        (("x", 0), "sample_period_s=0: must be a number of seconds from 0.01 to 3600."),
        (("x", float("nan")), "sample_period_s=nan: must be a number of seconds"),
        (("x", "soon"), "sample_period_s=soon: must be a number of seconds"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError) as caught:
        profiler.VramCallback(arguments[0], **({"sample_period_s": arguments[1]} if len(arguments) > 1 else {}))
    assert str(caught.value).startswith(says)
    assert len(str(caught.value).splitlines()) == 1
