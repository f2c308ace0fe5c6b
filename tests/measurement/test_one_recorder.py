"""What a trial, `VramCallback` and a watched command record of the same GPU, by the same scripted card and driver.

`recorded.json` has all three whole. `RECORDED=new` in the environment writes it anew.
"""

import json
import os
import signal
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from scripted import CONTEXT_BYTES, TOTAL_BYTES, UUID, CudaMemoryError, ScriptedCuda, ScriptedNvml

from profiler.callback.recording import Instruments as CallbackInstruments
from profiler.callback.recording import Recording
from profiler.domain.memory import GIB, MIB, Phase
from profiler.domain.runs.other_runs import NamedCard
from profiler.domain.runs.outcome import Outcome, Status, Verdict
from profiler.measurement.driver.nvml import GpuProcess, NvmlTrouble
from profiler.measurement.driver.visible import VisibleGpu
from profiler.measurement.recorder import Start
from profiler.measurement.samples.sampler import Sampler
from profiler.monitor.watch.running import run_command
from profiler.monitor.watch.watching import record_of
from profiler.storage.files.live_counters import LIVE_FOLDER, published
from profiler.storage.files.typed_json import to_json
from profiler.worker.cuda.measured import Instruments, MeasuringTask, measure

KEPT = Path(__file__).parent / "recorded.json"
NAME = "NVIDIA H100 80GB HBM3"
OTHERS_BYTES = 100 * MIB
WATCHERS = ("trial", "callback", "command")
WITH_COUNTERS = ("trial", "callback")


class SteppedClock:
    """Stands still unless the story moves it, so that the number of readings does not change a time."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


@dataclass
class Story:
    """A card with other programs, and a training on it."""

    cuda: ScriptedCuda = field(default_factory=lambda: ScriptedCuda(others_bytes=OTHERS_BYTES, retries=5))
    clock: SteppedClock = field(default_factory=SteppedClock)
    is_begun: bool = False
    live: list = field(default_factory=list)

    def __post_init__(self):
        self.nvml = ScriptedNvml(used_bytes=self._used, listed=self._processes)

    def _used(self):
        # Before CUDA is touched there is no context.
        return self.cuda.used_bytes() if self.is_begun else self.cuda.others_bytes

    def _processes(self):
        own = self.cuda.context_bytes + self.cuda.reserved
        return (GpuProcess(pid=os.getpid(), used_bytes=own),) if self.is_begun else ()

    def two_steps(self, enter):
        """2 GiB of weights; a rollout of 3; states of 4 from the first optimizer step on; a context that grows."""
        self.is_begun = True
        enter(Phase.LOAD)
        self.cuda.allocate(2 * GIB)
        for step in range(2):
            self._spike(enter, Phase.ROLLOUT, 3 * GIB)
            self.cuda.context_bytes += 64 * MIB
            self._spike(enter, Phase.BACKWARD, GIB)
            enter(Phase.OPTIMIZER)
            self.clock.now_s += 0.25
            if step == 0:
                self.cuda.allocate(4 * GIB)

    def _spike(self, enter, phase, size_bytes):
        enter(phase)
        self.clock.now_s += 1.0
        self.cuda.allocate(size_bytes)
        self.cuda.free(size_bytes)
        self.live.extend(published(Path(os.environ[LIVE_FOLDER])))


@dataclass(frozen=True)
class Recorded:
    """What one of the three has recorded."""

    outcome: Outcome
    samples: tuple
    gpus: tuple = ()

    def lines(self):
        """Everything but the memory of this process."""
        outcome = replace(self.outcome, work=replace(self.outcome.work, host_peak_rss_bytes=None, wall_s=None))
        return {"outcome": to_json(outcome), "gpus": to_json(self.gpus)}


@pytest.fixture
def record(tmp_path, monkeypatch):
    """Return what a watcher records of a story; the driver is sampled once as sampling starts."""
    monkeypatch.setattr(Sampler, "start", Sampler.take)
    monkeypatch.setenv(LIVE_FOLDER, str(tmp_path / "live"))

    def record(watcher, story, train=None):
        train = train or story.two_steps
        recorded = {"trial": trial, "callback": callback, "command": command}[watcher](story, train)
        assert not published(tmp_path / "live"), "the counters of what has ended are withdrawn"
        return recorded

    return record


def trial(story, train):
    def training(observer):
        train(observer.enter)
        return Outcome(verdict=Verdict(status=Status.OK))

    measured = measure(
        MeasuringTask(gpu=None, gpu_uuid=UUID, snapshot=False, started_s=0.0, live_name="trial"),
        Instruments(
            cuda=story.cuda,
            nvml=story.nvml,
            assumed_context_bytes=lambda capability: 0,
            clock=story.clock,
            own_processes=lambda: frozenset({os.getpid()}),
        ),
        training,
    )
    return Recorded(measured.outcome, measured.samples)


def callback(story, train):
    card = NamedCard(uuid=UUID, name=NAME, memory_bytes=TOTAL_BYTES, compute_capability=(9, 0))
    recording = Recording(
        CallbackInstruments(cuda=story.cuda, nvml=story.nvml, card=card, sample_period_s=0.01, clock=story.clock)
    )
    problem = ""
    try:
        train(recording.enter)
    except CudaMemoryError as error:
        problem = str(error)
    found = recording.finished(completed=not problem, problem=problem)
    return Recorded(found.outcome, recording.samples, found.gpus)


def command(story, train):
    """Watch a command that ends at once; all of the training is before the first sample."""
    gpu = VisibleGpu(uuid=UUID, name=NAME, memory_bytes=TOTAL_BYTES, compute_capability=(9, 0))
    take = Sampler.take

    def take_after_training(sampler):
        if not story.is_begun:
            train(lambda phase: None)
        return take(sampler)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sampler, "take", take_after_training)
        mask = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        run = run_command((sys.executable, "-c", ""), (gpu,), story.nvml, period_s=0.01, mask=mask)
    found = record_of(
        run,
        ("python",),
        Start(run_id="run", started_at="then"),
        estimate=None,
        driver_version="580.65.06",
        note="",
        period_s=0.01,
        host_ran_out=False,
    )
    return Recorded(found.outcome, run.samples[0], found.gpus)


# ---- all three -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("watcher", WATCHERS)
def test_everything_that_is_recorded_is_as_it_was(watcher, record):
    found = json.loads(json.dumps(record(watcher, Story()).lines()))
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    if os.environ.get("RECORDED") == "new":
        text = json.dumps(kept | {watcher: found}, indent=1, sort_keys=True)
        KEPT.write_text(text + "\n", encoding="utf-8")
    else:
        assert found == kept[watcher]


@pytest.mark.parametrize("watcher", WATCHERS)
def test_the_highest_sample_is_a_lower_bound_of_the_device_peak(watcher, record):
    recorded = record(watcher, Story())
    seen = recorded.outcome.measured.sampled_max_device_bytes
    assert seen == max(sample.device_used_bytes for sample in recorded.samples)


@pytest.mark.parametrize("watcher", WATCHERS)
def test_what_the_driver_does_not_report_is_named(watcher, record):
    story = Story()
    story.nvml.broken = {"power_watts": NvmlTrouble.NOT_SUPPORTED}
    assert "power: power_watts says" in record(watcher, story).outcome.verdict.unavailable


@pytest.mark.parametrize("watcher", WATCHERS)
def test_a_gpu_that_is_lost_is_reported_and_what_was_read_is_kept(watcher, record):
    story = Story()

    def train(enter):
        story.two_steps(enter)
        story.nvml.lose()

    recorded = record(watcher, story, train)
    if watcher == "trial":
        assert recorded.outcome.status is Status.DEVICE_FAULT
        assert recorded.outcome.message.startswith(UUID)
    elif watcher == "command":
        (gpu,) = recorded.gpus
        assert gpu.problem.startswith(UUID)
        assert recorded.samples == ()
    else:
        # The one sample was before the loss; the recording asks the driver for nothing afterwards.
        assert recorded.gpus[0].problem == ""
        assert recorded.outcome.peaks.allocated_bytes == 9 * GIB


@pytest.mark.parametrize("watcher", ["callback", "command"])
def test_memory_in_use_before_is_that_of_other_programs(watcher, record):
    (gpu,) = record(watcher, Story()).gpus
    assert gpu.before_bytes == OTHERS_BYTES


# ---- with torch's counters -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("watcher", WITH_COUNTERS)
def test_every_phase_of_every_step_has_its_exact_peak(watcher, record):
    outcome = record(watcher, Story()).outcome
    assert [(one.step, one.phase, one.peak_allocated_bytes / GIB) for one in outcome.measured.step_peaks] == [
        (0, Phase.LOAD, 2),
        (1, Phase.ROLLOUT, 5),
        (1, Phase.BACKWARD, 3),
        (1, Phase.OPTIMIZER, 6),
        (2, Phase.ROLLOUT, 9),
        (2, Phase.BACKWARD, 7),
        (2, Phase.OPTIMIZER, 6),
    ]
    peaks = outcome.peaks
    assert (peaks.allocated_bytes, peaks.phase, peaks.reserved_bytes) == (9 * GIB, Phase.ROLLOUT, 9 * GIB)
    assert peaks.inactive_split_bytes == 3 * GIB
    assert outcome.card.context_bytes == CONTEXT_BYTES + 128 * MIB
    assert peaks.device_bytes == 9 * GIB + outcome.card.context_bytes


@pytest.mark.parametrize("watcher", WITH_COUNTERS)
def test_retries_before_it_began_are_not_its_own(watcher, record):
    assert record(watcher, Story()).outcome.peaks.alloc_retries == 0


@pytest.mark.parametrize("watcher", WITH_COUNTERS)
def test_a_failed_allocation_has_the_memory_in_use_before_anything_is_freed(watcher, record):
    story = Story()

    def train(enter):
        story.two_steps(enter)
        enter(Phase.FORWARD)
        story.cuda.allocate(100 * GIB)

    outcome = record(watcher, story, train).outcome
    oom = outcome.verdict.oom
    assert outcome.status is Status.OOM
    assert (oom.phase, oom.step, oom.requested_bytes) == (Phase.FORWARD, 3, 100 * GIB)
    assert (oom.allocated_bytes, oom.reserved_bytes, oom.free_bytes) == (
        6 * GIB,
        9 * GIB,
        TOTAL_BYTES - story.cuda.used_bytes(),
    )
    assert outcome.peaks.alloc_retries == 1


@pytest.mark.parametrize("watcher", WITH_COUNTERS)
def test_the_counters_are_published_meanwhile(watcher, record):
    story = Story()
    record(watcher, story)
    assert {(one.gpu_uuid, one.pid) for one in story.live} == {(UUID, os.getpid())}


# ---- what differs ----------------------------------------------------------------------------------------------------


def test_only_a_trial_waits_for_the_gpu_and_so_has_times(record):
    peaks = record("trial", Story()).outcome.peaks.phases
    assert {peak.phase: peak.time_s for peak in peaks}[Phase.ROLLOUT] == 2.0
    assert all(peak.time_s is None for peak in record("callback", Story()).outcome.peaks.phases)


def test_only_a_trial_reads_the_context_where_each_phase_ends(record):
    """The context grows by 64 MiB in each rollout; a callback asks the driver where a step ends."""
    grown = [
        [
            None if one.context_bytes is None else (one.context_bytes - CONTEXT_BYTES) // MIB
            for one in record(watcher, Story()).outcome.measured.step_peaks
        ]
        for watcher in WITH_COUNTERS
    ]
    assert grown == [[0, 64, 64, 64, 128, 128, 128], [0, 0, 0, 64, 64, 64, 128]]


def test_a_command_that_is_watched_has_no_phases(record):
    outcome = record("command", Story()).outcome
    assert outcome.peaks.phases == ()
    assert {sample.phase for sample in record("command", Story()).samples} == {None}
