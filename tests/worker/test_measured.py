"""A measured trial with a scripted card, a scripted driver and training that allocates by a script."""

from collections.abc import Callable
from dataclasses import replace
from threading import Event

import builders
import pytest
from scripted import CONTEXT_BYTES, TOTAL_BYTES, UUID, Clock, ScriptedCuda, ScriptedNvml

from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import GIB, MIB, Phase
from profiler.domain.runs.outcome import Outcome, Status
from profiler.domain.runs.readings import LiveCounters, OutOfMemory
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.trial import Backend, TrialSpec
from profiler.measurement.driver.nvml import GpuProcess, NvmlTrouble
from profiler.storage.files.live_counters import LIVE_FOLDER, published
from profiler.training.placement import TrainingObserver
from profiler.worker.cuda.measured import CapError, Instruments, Measured, MeasuringTask, measure

SPEC = TrialSpec(backend=Backend.CUDA, gpu=None, model="tiny")
OK = builders.outcome_of(parameters=100, trainable_parameters=10, steps_run=3, micro_batches_run=3)
ASSUMED_CONTEXT_BYTES = 400 * MIB
PID = 7


class World:
    """A card, its driver and a worker that trains on it."""

    def __init__(self, **cuda: object) -> None:
        self.cuda = ScriptedCuda(**cuda)
        self.nvml = ScriptedNvml(used_bytes=self._used, listed=self._processes)
        self.trained = False
        self.pid = PID
        """The worker in the driver's list; in a container it differs from our own."""

    @property
    def touched(self) -> bool:
        """Whether CUDA was called and has made its context."""
        return "name" in self.cuda.calls

    def _used(self) -> int:
        # Before CUDA is touched there is no context.
        return self.cuda.used_bytes() if self.touched else self.cuda.others_bytes

    def _processes(self) -> tuple[GpuProcess, ...]:
        own = self.cuda.context_bytes + self.cuda.reserved
        return (GpuProcess(pid=self.pid, used_bytes=own),) if self.touched else ()

    def measure(
        self,
        train: Callable[[TrainingObserver], Outcome],
        *,
        snapshot: bool = False,
        sample_period_s: float | None = 0.001,
        live_name: str = "",
        **spec: object,
    ) -> Measured:
        def training(observer: TrainingObserver) -> Outcome:
            self.trained = True
            return train(observer)

        trial = replace(SPEC, **spec)
        return measure(
            MeasuringTask(
                gpu=trial.gpu,
                alloc_conf=trial.alloc_conf,
                has_paged_states=trial.optim.traits.is_paged,
                gpu_uuid=UUID,
                snapshot=snapshot,
                live_name=live_name,
                started_s=0.0,
            ),
            Instruments(
                cuda=self.cuda,
                nvml=self.nvml,
                assumed_context_bytes=lambda capability: ASSUMED_CONTEXT_BYTES,
                clock=Clock(0.001),
                own_processes=lambda: frozenset({PID}),
                sample_period_s=sample_period_s,
            ),
            training,
        )

    def three_steps(self, observer: TrainingObserver) -> Outcome:
        """2 GiB of weights; a rollout of 3; states of 4 from the first optimizer step on; a spike of 1 in backward."""
        observer.enter(Phase.LOAD)
        self.cuda.allocate(2 * GIB)
        observer.model_built(parameters=100, trainable=10)
        for step in range(3):
            observer.enter(Phase.ROLLOUT)
            self.cuda.allocate(3 * GIB)
            self.cuda.free(3 * GIB)
            observer.enter(Phase.FORWARD)
            observer.enter(Phase.BACKWARD)
            self.cuda.allocate(GIB)
            self.cuda.free(GIB)
            observer.enter(Phase.OPTIMIZER)
            if step == 0:
                self.cuda.allocate(4 * GIB)
        return OK


@pytest.fixture
def world() -> World:
    return World(others_bytes=100 * MIB)


def test_every_phase_and_step_has_its_exact_peak(world: World) -> None:
    outcome = world.measure(world.three_steps).outcome
    assert outcome.status is Status.OK
    assert (outcome.peaks.allocated_bytes, outcome.peaks.phase) == (9 * GIB, Phase.ROLLOUT)
    assert outcome.peaks.reserved_bytes == 9 * GIB
    peaks = {peak.phase: peak.peak_allocated_bytes for peak in outcome.peaks.phases}
    assert peaks == {
        Phase.LOAD: 2 * GIB,
        Phase.ROLLOUT: 9 * GIB,
        Phase.FORWARD: 6 * GIB,
        Phase.BACKWARD: 7 * GIB,
        Phase.OPTIMIZER: 6 * GIB,
    }
    rollouts = [one.peak_allocated_bytes for one in outcome.measured.step_peaks if one.phase is Phase.ROLLOUT]
    assert rollouts == [5 * GIB, 9 * GIB, 9 * GIB]


def test_the_first_step_is_not_the_peak_and_the_row_has_the_step_where_it_settled(world: World) -> None:
    outcome = world.measure(world.three_steps).outcome
    assert (outcome.measured.settled_step, outcome.measured.growth_bytes_per_step) == (2, 0.0)


def test_the_context_is_memory_of_neither_torch_nor_others(world: World) -> None:
    outcome = world.measure(world.three_steps).outcome
    assert outcome.card.context_bytes == CONTEXT_BYTES
    assert outcome.peaks.device_bytes == 9 * GIB + CONTEXT_BYTES


def test_the_row_names_gpu_and_driver_and_has_the_times_of_its_parts(world: World) -> None:
    outcome = world.measure(world.three_steps).outcome
    assert (outcome.card.name, outcome.card.memory_bytes) == (world.cuda.title, TOTAL_BYTES)
    assert (outcome.measured.gpu_uuid, outcome.measured.driver_version) == (UUID, "580.65.06")
    assert outcome.measured.startup_s is not None
    assert outcome.measured.startup_s > 0
    assert all(peak.time_s is not None and peak.time_s > 0 for peak in outcome.peaks.phases)
    assert outcome.measured.load_s == outcome.peaks.phases[0].time_s
    assert outcome.measured.rollout_s == pytest.approx(outcome.peaks.phases[1].time_s / 3)
    assert world.cuda.calls.count("synchronize") == len(outcome.measured.step_peaks)


def test_samples_are_tagged_and_their_maximum_is_a_lower_bound(world: World) -> None:
    measured = world.measure(world.three_steps)
    assert measured.samples
    assert {sample.phase for sample in measured.samples} <= {None, *Phase}
    seen = measured.outcome.measured.sampled_max_device_bytes
    assert seen is not None
    assert seen <= measured.outcome.peaks.device_bytes + world.cuda.others_bytes
    assert measured.outcome.measured.sample_period_s == 0.001


def test_a_spike_between_two_samples_is_counted_and_reported_as_missed(world: World) -> None:
    ready = Event()
    used = world.nvml.used_bytes
    world.nvml.used_bytes = lambda: (world.touched and ready.set()) or used()

    def train(observer: TrainingObserver) -> Outcome:
        assert ready.wait(300)  # the one sample there will be, before anything is allocated
        while not world.nvml.asked.count("sm_clock_mhz"):
            pass
        return world.three_steps(observer)

    outcome = world.measure(train, sample_period_s=3600.0).outcome
    assert outcome.peaks.reserved_bytes == 9 * GIB
    assert outcome.measured.sampled_max_device_bytes == world.cuda.others_bytes + CONTEXT_BYTES
    assert outcome.measured.missed_by_sampling_bytes == 9 * GIB


def test_without_samples_the_counters_are_the_same(world: World) -> None:
    measured = world.measure(world.three_steps, sample_period_s=None)
    assert measured.samples == ()
    outcome = measured.outcome
    assert (outcome.peaks.allocated_bytes, outcome.card.context_bytes) == (9 * GIB, CONTEXT_BYTES)
    assert (
        outcome.measured.sample_period_s,
        outcome.measured.sampled_max_device_bytes,
        outcome.peaks.phases[0].samples,
    ) == (None, None, None)
    assert "utilisation_percent" not in world.nvml.asked


def test_retries_are_those_of_the_trial_and_not_of_the_check_of_the_cap() -> None:
    world = World()
    outcome = world.measure(world.three_steps, gpu="rtx-4090-24gb").outcome
    assert world.cuda.retries == 1
    assert outcome.peaks.alloc_retries == 0


# ---- out of memory ---------------------------------------------------------------------------------------------------


def too_much(world: World) -> Callable[[TrainingObserver], Outcome]:
    def train(observer: TrainingObserver) -> Outcome:
        world.three_steps(observer)
        observer.enter(Phase.FORWARD)
        world.cuda.allocate(100 * GIB)
        raise AssertionError("the allocation should have failed")

    return train


def test_out_of_memory_has_the_memory_in_use_at_the_error(world: World) -> None:
    outcome = world.measure(too_much(world)).outcome
    assert outcome.status is Status.OOM
    assert outcome.verdict.oom == OutOfMemory(
        phase=Phase.FORWARD,
        step=4,
        requested_bytes=100 * GIB,
        free_bytes=TOTAL_BYTES - world.cuda.used_bytes(),
        allocated_bytes=6 * GIB,
        reserved_bytes=9 * GIB,
    )
    assert outcome.message.startswith("CUDA out of memory. Tried to allocate 100.00 GiB.")
    assert (outcome.work.parameters, outcome.work.trainable_parameters) == (100, 10)
    assert (outcome.work.steps_run, outcome.work.micro_batches_run, outcome.peaks.alloc_retries) == (3, 3, 1)
    assert outcome.peaks.allocated_bytes == 9 * GIB
    assert outcome.card.name == world.cuda.title


def test_without_torchs_observer_the_sizes_are_read_from_the_message() -> None:
    world = World(tells_of_out_of_memory=False)
    oom = world.measure(too_much(world)).outcome.verdict.oom
    assert oom is not None
    assert oom.requested_bytes == 100 * GIB
    assert oom.free_bytes == pytest.approx(TOTAL_BYTES - CONTEXT_BYTES - 9 * GIB, abs=GIB // 100)
    assert (oom.allocated_bytes, oom.reserved_bytes) == (6 * GIB, 9 * GIB)


def test_with_a_message_of_another_library_the_sizes_are_those_of_the_counters() -> None:
    world = World()

    def train(observer: TrainingObserver) -> Outcome:
        world.three_steps(observer)
        raise world.cuda.allocate(0) or RefusedError("CUBLAS_STATUS_ALLOC_FAILED")

    class RefusedError(RuntimeError):
        pass

    world.cuda.is_out_of_memory = lambda error: isinstance(error, RefusedError)
    oom = world.measure(train).outcome.verdict.oom
    assert oom is not None
    assert (oom.requested_bytes, oom.allocated_bytes, oom.reserved_bytes) == (None, 6 * GIB, 9 * GIB)
    assert (oom.phase, oom.step) == (Phase.OPTIMIZER, 3)


def without_handle(world: World, *, reserved_bytes: int) -> Callable[[TrainingObserver], Outcome]:
    """Return training that fills the card and then needs a library's first handle."""

    def train(observer: TrainingObserver) -> Outcome:
        observer.enter(Phase.ROLLOUT)
        world.cuda.allocate(reserved_bytes)
        raise RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`")

    return train


@pytest.mark.parametrize("driver", [True, False], ids=["by the driver", "by CUDA"])
def test_a_library_without_a_handle_on_a_full_card_is_out_of_memory(driver: bool) -> None:
    world = World()
    if not driver:
        world.nvml.broken = {"memory": NvmlTrouble.ABSENT}
    full = TOTAL_BYTES - CONTEXT_BYTES - 255 * MIB
    outcome = world.measure(without_handle(world, reserved_bytes=full)).outcome
    assert outcome.status is Status.OOM
    assert outcome.verdict.oom is not None
    assert (outcome.verdict.oom.phase, outcome.verdict.oom.free_bytes) == (Phase.ROLLOUT, 255 * MIB)


def test_a_library_without_a_handle_on_a_card_with_memory_left_is_a_failure() -> None:
    world = World()
    enough = TOTAL_BYTES - CONTEXT_BYTES - 256 * MIB
    with pytest.raises(RuntimeError, match="CUBLAS_STATUS_NOT_INITIALIZED"):
        world.measure(without_handle(world, reserved_bytes=enough))


def test_out_of_memory_before_the_first_phase_is_in_load() -> None:
    world = World()
    outcome = world.measure(lambda observer: world.cuda.allocate(100 * GIB)).outcome
    assert outcome.verdict.oom is not None
    assert (outcome.verdict.oom.phase, outcome.peaks.phases, outcome.peaks.allocated_bytes) == (Phase.LOAD, (), None)


def test_any_other_error_is_raised(world: World) -> None:
    def train(observer: TrainingObserver) -> Outcome:
        observer.enter(Phase.LOAD)
        raise ValueError("no such model")

    with pytest.raises(ValueError, match="no such model"):
        world.measure(train)


# ---- snapshots -------------------------------------------------------------------------------------------------------


def test_a_snapshot_is_taken_at_the_error_or_at_the_end(world: World) -> None:
    measured = world.measure(too_much(world), snapshot=True)
    assert measured.snapshot == {"segments": [{"allocated_size": 6 * GIB}], "device_traces": [[]]}
    assert "history 100000" in world.cuda.calls
    other = World()
    assert other.measure(other.three_steps, snapshot=True).snapshot is not None


def test_without_the_option_no_history_is_recorded(world: World) -> None:
    assert world.measure(world.three_steps).snapshot is None
    assert not [call for call in world.cuda.calls if call.startswith("history")]


# ---- a smaller card on a big one -------------------------------------------------------------------------------------


def test_a_capped_card_is_labelled_and_runs_out_of_the_smaller_cards_memory() -> None:
    world = World()
    outcome = world.measure(too_much(world), gpu="rtx-4090-24gb").outcome
    target = KNOWN_GPUS["rtx-4090-24gb"]
    assert outcome.card.name == "NVIDIA H100 80GB HBM3 capped to 24 GiB"
    assert outcome.card.memory_bytes == target.memory_bytes
    assert world.cuda.limit == target.memory_bytes - ASSUMED_CONTEXT_BYTES
    assert outcome.verdict.oom is not None
    # Free memory of a card of that size, not of the large one.
    assert outcome.verdict.oom.free_bytes == world.cuda.limit - 9 * GIB
    assert outcome.peaks.allocated_bytes == 9 * GIB


def test_a_cap_that_does_not_work_is_an_error_before_anything_runs() -> None:
    world = World(holds_cap=False)
    with pytest.raises(CapError, match=r"allocated more than the cap of 23\.25 GiB"):
        world.measure(world.three_steps, gpu="rtx-4090-24gb")
    assert not world.trained


def test_a_card_with_too_little_free_memory_for_the_cap_is_an_error() -> None:
    world = World(others_bytes=70 * GIB)
    with pytest.raises(CapError, match=r"cannot be capped to 23\.25 GiB"):
        world.measure(world.three_steps, gpu="rtx-4090-24gb")


@pytest.mark.parametrize("total_mib", [80_995, 81_009, 81_226])
def test_a_card_is_not_capped_to_itself_whatever_its_driver_reports(total_mib: int) -> None:
    """Drivers report 79.10, 79.11 and 79.32 GiB for an H100."""
    world = World()
    world.cuda.total_bytes = lambda: total_mib * MIB
    outcome = world.measure(world.three_steps, gpu="h100-80gb").outcome
    assert outcome.card.name == KNOWN_GPUS["h100-80gb"].title
    assert outcome.card.memory_bytes == total_mib * MIB
    assert world.cuda.limit == TOTAL_BYTES


# ---- incomplete drivers and shared GPUs (rows 6, 15 and 16 of the fault table) ---------------------------------------


def test_without_a_driver_the_counters_still_count_and_the_row_lists_what_is_missing() -> None:
    world = World()
    methods = ("memory", "processes", "utilisation_percent", "power_watts", "sm_clock_mhz", "driver_version")
    world.nvml.broken = dict.fromkeys(methods, NvmlTrouble.ABSENT)
    outcome = world.measure(world.three_steps).outcome
    assert outcome.status is Status.OK
    assert outcome.peaks.allocated_bytes == 9 * GIB
    missing = (outcome.peaks.device_bytes, outcome.card.context_bytes, outcome.measured.sampled_max_device_bytes)
    assert (*missing, outcome.measured.driver_version) == (None, None, None, None)
    assert "device memory: memory says absent" in outcome.verdict.unavailable
    assert "context: memory of other programs before the trial is unknown" in outcome.verdict.unavailable


@pytest.mark.parametrize("listed", [(), (GpuProcess(pid=123_456, used_bytes=GIB),)], ids=["empty", "the host's pids"])
def test_in_a_container_only_the_processes_are_missing(listed: tuple[GpuProcess, ...]) -> None:
    world = World()
    world.nvml.listed = listed
    measured = world.measure(world.three_steps)
    assert measured.outcome.status is Status.OK
    assert all(sample.process_used_bytes is None for sample in measured.samples)
    assert (
        "process memory: the driver's list of processes does not have this one" in measured.outcome.verdict.unavailable
    )
    assert measured.outcome.card.context_bytes == CONTEXT_BYTES


def test_a_complete_row_lists_nothing_as_missing(world: World) -> None:
    assert world.measure(world.three_steps).outcome.verdict.unavailable == ""


def test_memory_taken_by_another_program_during_the_trial_is_contention() -> None:
    world = World()
    world.nvml.listed = ()

    def train(observer: TrainingObserver) -> Outcome:
        world.three_steps(observer)
        world.cuda.others_bytes += 4 * GIB
        observer.enter(Phase.FORWARD)
        return OK

    outcome = world.measure(train).outcome
    assert outcome.status is Status.CONTENDED
    assert not outcome.status.answered
    assert outcome.message.startswith("Another program took 4.49 GiB")


def with_growing_context(world: World) -> Callable[[TrainingObserver], Outcome]:
    """Return training whose context grows: cuDNN keeps a plan per length of the keys, gigabytes in all."""

    def train(observer: TrainingObserver) -> Outcome:
        observer.enter(Phase.LOAD)
        for _ in range(4):
            observer.enter(Phase.ROLLOUT)
            world.cuda.context_bytes += GIB
            observer.enter(Phase.OPTIMIZER)
        return OK

    return train


@pytest.mark.parametrize("pid", [PID, 123_456], ids=["our own pid", "the host's pid"])
def test_a_growing_context_is_the_trials_own_and_recorded_at_each_phase_change(pid: int) -> None:
    world = World()
    world.pid = pid
    outcome = world.measure(with_growing_context(world)).outcome
    assert outcome.status is Status.OK
    assert outcome.card.context_bytes == CONTEXT_BYTES + 4 * GIB
    rollouts = [one.context_bytes for one in outcome.measured.step_peaks if one.phase is Phase.ROLLOUT]
    assert rollouts == [CONTEXT_BYTES + count * GIB for count in (1, 2, 3, 4)]


def test_without_a_list_of_processes_a_context_of_gigabytes_is_taken_for_another_program() -> None:
    world = World()
    world.nvml.listed = ()
    assert world.measure(with_growing_context(world)).outcome.status is Status.CONTENDED


def test_another_program_is_distinguished_from_a_growing_context_at_phase_changes() -> None:
    world = World()

    def train(observer: TrainingObserver) -> Outcome:
        outcome = with_growing_context(world)(observer)
        world.cuda.others_bytes += 300 * MIB
        observer.enter(Phase.ROLLOUT)
        observer.enter(Phase.OPTIMIZER)
        return outcome

    outcome = world.measure(train, sample_period_s=None).outcome
    assert outcome.status is Status.CONTENDED
    assert outcome.message.startswith("Another program took 0.29 GiB")


def test_memory_in_use_before_the_trial_is_no_contention() -> None:
    world = World(others_bytes=4 * GIB)
    assert world.measure(world.three_steps).outcome.status is Status.OK


def test_paged_states_are_not_taken_for_another_program() -> None:
    world = World()
    world.nvml.listed = ()

    def train(observer: TrainingObserver) -> Outcome:
        world.cuda.others_bytes += 8 * GIB  # managed memory, which torch does not count
        return world.three_steps(observer)

    outcome = world.measure(train, optim=Optimizer.PAGED_ADAMW_8BIT).outcome
    assert (outcome.status, outcome.card.context_bytes) == (Status.OK, None)
    assert "context: paged optimizer states" in outcome.verdict.unavailable


@pytest.mark.parametrize("raises", [False, True], ids=["training continued", "CUDA raised"])
def test_a_gpu_lost_during_the_trial_overrides_the_trials_outcome(raises: bool) -> None:
    world = World()

    def train(observer: TrainingObserver) -> Outcome:
        world.three_steps(observer)
        world.nvml.lose()
        assert world.nvml.loss_noticed.wait(300)
        if raises:
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
        return OK

    outcome = world.measure(train).outcome
    assert outcome.status is Status.DEVICE_FAULT
    assert outcome.message


def test_a_gpu_that_is_lost_before_the_trial_is_a_device_fault() -> None:
    world = World()
    world.nvml.lose()
    outcome = world.measure(world.three_steps).outcome
    assert (outcome.status, outcome.measured.gpu_uuid) == (Status.DEVICE_FAULT, UUID)
    assert not world.touched


def test_the_trials_allocator_settings_are_set_before_anything_is_allocated(world: World) -> None:
    world.measure(world.three_steps, alloc_conf="expandable_segments:True")
    assert world.cuda.settings == "expandable_segments:True"


def test_a_monitor_sees_the_counters_while_it_trains(world: World, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIVE_FOLDER, str(tmp_path / "live"))
    seen: list[LiveCounters] = []

    def train(observer: TrainingObserver) -> Outcome:
        observer.enter(Phase.LOAD)
        world.cuda.allocate(2 * GIB)
        observer.enter(Phase.ROLLOUT)
        seen.extend(published(tmp_path / "live"))
        return OK

    world.measure(train, live_name="grpo tiny lora")
    (counters,) = seen
    assert (counters.what, counters.phase, counters.allocated_bytes) == ("grpo tiny lora", Phase.LOAD, 2 * GIB)
    assert published(tmp_path / "live") == ()
