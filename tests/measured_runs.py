"""Made-up records of a real card: trials of a sweep, and trainings that VramCallback has recorded."""

from dataclasses import replace

from builders import VERSIONS, spec

from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import GIB
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.runs.other_runs import HostPeaks, MonitoredGpu, MonitoredRun, Watcher
from profiler.domain.runs.outcome import CardFacts, MeasuredDetails, Outcome, Peaks, Status, TrialRecord, Verdict, Work
from profiler.domain.trials.trial import Backend
from profiler.storage.records.record_folder import MONITORED, TRIALS, RecordFolder

H100 = KNOWN_GPUS["h100-80gb"]
UUID = "GPU-11111111-2222-3333-4444-555555555555"
PARAMETERS = BUILTIN_MODELS["qwen2.5-0.5b"].parameters


def outcome(allocated=8 * GIB, reserved=9 * GIB, device=10 * GIB, status=Status.OK, **changes):
    made = Outcome(
        verdict=Verdict(status=status),
        work=Work(parameters=PARAMETERS, steps_run=3),
        card=CardFacts(name=H100.title, memory_bytes=H100.memory_bytes),
        peaks=Peaks(allocated_bytes=allocated, reserved_bytes=reserved, device_bytes=device),
        measured=MeasuredDetails(gpu_uuid=UUID, driver_version="580.159.04"),
    )
    return replace(made, **changes)


def trial(trial_id="0123456789abcdef", *, found=None, versions=VERSIONS, **changes):
    given = {"backend": Backend.CUDA, "gpu": None, **changes}
    return TrialRecord(
        trial_id=trial_id,
        grid="mine",
        label="full",
        spec=spec(**given),
        versions=versions,
        outcome=found or outcome(),
    )


def simulated(trial_id="fedcba9876543210", *, allocated=8 * GIB, **changes):
    found = outcome(allocated, 9 * GIB, None, measured=None)
    return trial(trial_id, found=found, backend=Backend.SIMULATED, gpu="h100-80gb", **changes)


def training(run_id="20260131T090000123-4711", *, found=None, watcher=Watcher.CALLBACK, uuid=UUID):
    gpu = MonitoredGpu(
        index=0,
        uuid=uuid,
        name=H100.title,
        memory_bytes=H100.memory_bytes,
        before_bytes=0,
        peak_used_bytes=None,
        peak_process_bytes=None,
        mean_utilisation_percent=None,
        mean_power_watts=None,
    )
    return MonitoredRun(
        run_id=run_id,
        watcher=watcher,
        command=("/home/alice/train.py", "--token", "secret"),
        started_at="2026-01-31T09:00:00+00:00",
        exit_code=None,
        gpus=(gpu,),
        host=HostPeaks(tree_bytes=None, processes=None, used_bytes=None, total_bytes=None),
        estimate=None,
        versions=VERSIONS,
        outcome=found or outcome(),
    )


def stored(folder, *records):
    """A folder with these records."""
    for record in records:
        RecordFolder(folder, TRIALS if isinstance(record, TrialRecord) else MONITORED).write(record)
    return folder
