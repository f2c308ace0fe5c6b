"""Records of runs of a script."""

from profiler.domain.memory import GIB, NOT_EMULATED, Phase
from profiler.domain.runs.other_runs import HeldTensors, ScriptEnding, ScriptRecord, ScriptSpec
from profiler.domain.runs.outcome import (
    CardFacts,
    EmulatedDetails,
    MeasuredDetails,
    Outcome,
    Peaks,
    Status,
    Verdict,
    Versions,
    Work,
)
from profiler.domain.runs.readings import OutOfMemory, PhasePeak, StepPeak
from profiler.domain.trials.trial import Backend

VERSIONS = Versions(torch="2.13.0", trl=None, transformers="5.23.0", peft=None, bitsandbytes=None, profiler="0.1.0")
SIZES = {Phase.LOAD: 2 * GIB, Phase.FORWARD: 5 * GIB, Phase.BACKWARD: 7 * GIB, Phase.OPTIMIZER: 6 * GIB}


def record(*, run_id="0" * 16, backend=Backend.EMULATED, fits=True, **spec) -> ScriptRecord:
    """Return the record of a run with three phases and its loading."""
    steps = tuple(
        StepPeak(
            step=int(phase is not Phase.LOAD),
            phase=phase,
            peak_allocated_bytes=size,
            peak_reserved_bytes=size + GIB,
            time_s=None,
        )
        for phase, size in SIZES.items()
    )
    oom = OutOfMemory(
        phase=Phase.BACKWARD,
        step=2,
        requested_bytes=3 * GIB,
        free_bytes=GIB,
        allocated_bytes=9 * GIB,
        reserved_bytes=None,
    )
    return ScriptRecord(
        run_id=run_id,
        spec=ScriptSpec(
            **{"script": "/project/train.py", "arguments": ("--lr", "1e-5"), "gpu": "l40s-48gb", "steps": 1, **spec},
            backend=backend,
        ),
        script_sha256="ab" * 32,
        substitutes=("weights of a/b (random, from its configuration)",),
        ending=ScriptEnding(exit_code=0, by_steps=True),
        largest=()
        if fits
        else (
            HeldTensors(size_bytes=4 * GIB, tensors=24, name="layers.*.weight", line="", library=""),
            HeldTensors(size_bytes=2 * GIB, tensors=3, name="", line="train.py:41", library="modeling.py:7"),
            HeldTensors(size_bytes=GIB, tensors=1, name="", line="", library=""),
        ),
        versions=VERSIONS,
        outcome=Outcome(
            verdict=Verdict(
                status=Status.OK if fits else Status.OOM,
                oom=None if fits else oom,
                message="" if fits else "CUDA out of memory.",
                unavailable=NOT_EMULATED if backend is Backend.EMULATED else "",
            ),
            work=Work(steps_run=1, micro_batches_run=2, parameters=1000, trainable_parameters=10, wall_s=3.0),
            card=CardFacts(name="NVIDIA L40S", memory_bytes=44 * GIB),
            peaks=Peaks(
                allocated_bytes=7 * GIB,
                reserved_bytes=8 * GIB,
                device_bytes=9 * GIB,
                phase=Phase.BACKWARD,
                phases=tuple(
                    PhasePeak(phase=phase, peak_allocated_bytes=size, peak_reserved_bytes=size + GIB)
                    for phase, size in SIZES.items()
                ),
            ),
            measured=MeasuredDetails(step_peaks=steps),
            emulated=EmulatedDetails(values="complete") if backend is Backend.EMULATED else None,
        ),
    )
