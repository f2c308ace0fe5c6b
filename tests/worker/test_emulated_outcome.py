"""What of the measured path is kept of an emulated trial."""

from dataclasses import fields

from profiler.domain.cards.card import cuda_context_bytes
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.memory import NOT_EMULATED, Phase
from profiler.domain.runs.outcome import (
    CardFacts,
    EmulatedDetails,
    MeasuredDetails,
    Outcome,
    Peaks,
    Status,
    Verdict,
    Work,
)
from profiler.domain.runs.readings import OutOfMemory, PhasePeak, StepPeak
from profiler.emulation.card import Marks
from profiler.worker.cuda.emulated import as_emulated, refusal

T4 = KNOWN_GPUS["t4-16gb"]
NO_MARKS = Marks()
CONTEXT = cuda_context_bytes((7, 5))


def measured(status: Status = Status.OK, oom: OutOfMemory | None = None, message: str = "") -> Outcome:
    """An outcome with everything that a real card gives."""
    phase = PhasePeak(
        phase=Phase.BACKWARD,
        peak_allocated_bytes=70,
        peak_reserved_bytes=80,
        time_s=1.0,
        samples=3,
        sampled_max_device_bytes=90,
        mean_utilisation_percent=1.0,
        mean_power_watts=1.0,
        mean_sm_clock_mhz=1.0,
    )
    step = StepPeak(
        step=1, phase=Phase.BACKWARD, peak_allocated_bytes=70, peak_reserved_bytes=80, time_s=1.0, context_bytes=5
    )
    return Outcome(
        verdict=Verdict(status=status, message=message, oom=oom, unavailable="power: not supported"),
        work=Work(parameters=1, steps_run=3, step_time_s=1.0, gpu_s=9.0),
        card=CardFacts(name="a card", memory_bytes=1, context_bytes=5),
        peaks=Peaks(allocated_bytes=70, reserved_bytes=80, device_bytes=85, phase=Phase.BACKWARD, phases=(phase,)),
        measured=MeasuredDetails(
            gpu_uuid="GPU-1",
            driver_version="580",
            startup_s=1.0,
            load_s=1.0,
            rollout_s=1.0,
            sampled_max_device_bytes=90,
            sample_period_s=0.01,
            missed_by_sampling_bytes=1,
            settled_step=2,
            growth_bytes_per_step=1.5,
            step_peaks=(step,),
        ),
    )


def test_no_time_no_sample_and_no_figure_of_the_driver_stays() -> None:
    found = as_emulated(measured(), T4, marks=NO_MARKS)

    (phase,), kept = found.peaks.phases, found.measured
    assert kept is not None
    (step,) = kept.step_peaks
    parts = (found.work, found.peaks, phase, kept, step)
    times = {field.name for part in parts for field in fields(part) if field.name.endswith("_s")}
    assert times >= {"time_s", "step_time_s", "gpu_s", "load_s", "rollout_s", "startup_s"}
    assert all(getattr(part, name, None) is None for part in parts for name in times)
    sampled = [name for part in (phase, kept) for name in vars(part) if "sampl" in name or "mean" in name]
    assert len(sampled) == 8
    assert all(getattr(part, name, None) is None for part in (phase, kept) for name in sampled)
    assert (kept.gpu_uuid, kept.driver_version, step.context_bytes) == (None, None, None)


def test_peaks_of_the_counters_stay() -> None:
    found = as_emulated(measured(), T4, marks=NO_MARKS)

    assert (found.peaks.allocated_bytes, found.peaks.reserved_bytes, found.peaks.phase) == (70, 80, Phase.BACKWARD)
    assert [(one.peak_allocated_bytes, one.peak_reserved_bytes) for one in found.peaks.phases] == [(70, 80)]
    assert found.measured is not None
    assert [(one.peak_allocated_bytes, one.peak_reserved_bytes) for one in found.measured.step_peaks] == [(70, 80)]
    assert (found.measured.settled_step, found.measured.growth_bytes_per_step) == (2, 1.5)
    assert (found.work.parameters, found.work.steps_run) == (1, 3)


def test_the_context_is_the_assumed_one() -> None:
    found = as_emulated(measured(), T4, marks=NO_MARKS)

    assert (found.card.name, found.card.memory_bytes, found.card.context_bytes) == (T4.title, T4.memory_bytes, CONTEXT)
    assert found.peaks.device_bytes == 80 + CONTEXT


def test_it_says_what_it_cannot_contain_and_what_the_driver_noted() -> None:
    marks = Marks(
        values_read=("int64 of new::kernel", "bool of other"),
        assumptions=("tokens are drawn",),
        unseen_entry_points=("cudart:cudaNew",),
    )

    found, plain = as_emulated(measured(), T4, marks=marks), as_emulated(measured(), T4, marks=NO_MARKS)
    assert (plain.verdict.unavailable, plain.emulated) == (NOT_EMULATED, EmulatedDetails(values="complete"))
    assert found.emulated == EmulatedDetails(values="int64 of new::kernel, bool of other")
    assert found.verdict.unavailable == (
        f"{NOT_EMULATED}; a value that the host read: int64 of new::kernel; a value that the host read: bool of other; "
        "assumed: tokens are drawn; what cudart:cudaNew does, which the emulated driver does not answer"
    )


def test_torchs_out_of_memory_message_is_marked() -> None:
    oom = OutOfMemory(phase=Phase.FORWARD, requested_bytes=1)

    ran_out = as_emulated(measured(Status.OOM, oom, "CUDA out of memory."), T4, marks=NO_MARKS)
    assert ran_out.message == "CUDA out of memory. (Emulated, in forward.)"
    assert as_emulated(measured(), T4, marks=NO_MARKS).message == ""


def test_what_torch_or_trl_refuse_on_the_card_is_unsupported_and_other_errors_are_not() -> None:
    words = (
        "gemm input type at::BFloat16 and output type float is only supported for CUDA devices with compute capability"
    )

    for error in (RuntimeError(f"{words} 8.0 or higher\nat a line"), UnsupportedTrialError("no sdpa")):
        found = refusal(error)
        assert found is not None
        assert (found.status, found.message) == (Status.UNSUPPORTED, str(error).splitlines()[0])
    assert refusal(RuntimeError("CUDA error: an illegal memory access was encountered")) is None
    assert refusal(RuntimeError("")) is None
