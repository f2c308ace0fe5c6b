#!/usr/bin/env python
"""Run sampled trials with torch's CUDA build on an emulated driver, simulate them, and compare.

    python scripts/emulated_trials.py sample FOLDER       # write FOLDER/trials.jsonl, before anything runs
    python scripts/emulated_trials.py emulate FOLDER      # under the emulated driver, once per card: run its trials
    python scripts/emulated_trials.py simulate FOLDER     # in the ordinary environment
    python scripts/emulated_trials.py collect FOLDER      # write FOLDER/rows.csv and print the differences

Both sides need the same versions of torch, trl, transformers, peft and bitsandbytes. Each trial runs in a process of its
own, forked before CUDA is initialised, and writes FOLDER/outcomes/NAME.SIDE.json. A trial with such a file does not run
again. The figures are emulated, never measured.
"""

import csv
import json
import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

SEED, SAMPLED, MOST_DECODED_TOKENS = 20261122, 50, 300
"""Sampled trials that would decode more than `MOST_DECODED_TOKENS` tokens one by one take minutes, and are left out."""

FIXED_AXES = {
    "gpu": ("h100-80gb", "a100-80gb", "l40s-48gb", "rtx-4090-24gb", "b200-180gb", "t4-16gb"),
    "model": ("qwen2.5-0.5b", "qwen2.5-1.5b", "qwen3-0.6b", "llama-3.2-1b", "qwen2.5-3b", "qwen3-1.7b"),
    "attn_implementation": ("sdpa", "eager"),
    "max_completion_length": (64, 128, 200, 256, 512),
    "max_prompt_length": (32, 64, 128, 256, 512),
    "rollout": ("synthetic", "synthetic", "synthetic", "generate"),
    "steps": (2,),
    "alloc_conf": ("",),
}
"""Axes that differ from those of `maintenance.accuracy`: small enough to be emulated within seconds."""

COLUMNS = (
    "emulated_allocated_bytes",
    "simulated_allocated_bytes",
    "emulated_reserved_bytes",
    "simulated_reserved_bytes",
)


def sample(folder: Path) -> None:
    """Sample the trials and write them to `trials.jsonl`."""
    from maintenance.accuracy import sampling
    from profiler.config.identity import spec_to_mapping

    optimizers = tuple(name for name in sampling.AXES["optim"] if not str(name).startswith("paged"))
    sampling.AXES = {**sampling.AXES, **FIXED_AXES, "optim": optimizers}
    lines = []
    for number, spec in enumerate(sampling.sample(SAMPLED, seed=SEED)):
        rollouts = spec.steps * spec.gradient_accumulation_steps // spec.steps_per_generation
        if spec.rollout.value == "synthetic" or rollouts * spec.max_completion_length <= MOST_DECODED_TOKENS:
            lines.append(json.dumps({"name": f"f{number:03}", "spec": spec_to_mapping(spec)}))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trials.jsonl").write_text("\n".join(lines) + "\n")


def emulate(folder: Path) -> None:
    """Run the trials of the visible card as measured trials."""
    from profiler.measurement.visible import TEST_ON_EMULATED_DRIVER, capability_environment, visible_gpus

    os.environ[TEST_ON_EMULATED_DRIVER] = "1"
    visible = visible_gpus().gpus
    os.environ |= {**capability_environment(visible), "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    import profiler.worker_imports  # noqa: F401 - before the fork, without initialising CUDA
    from profiler.domain.builtin_models import BUILTIN_MODELS
    from profiler.domain.gpu import KNOWN_GPUS
    from profiler.domain.trial import Backend
    from profiler.worker.real import run_real

    for name, spec in _trials(folder):
        if KNOWN_GPUS[spec.gpu].title == visible[0].name:
            real = replace(spec, backend=Backend.CUDA, gpu=None)
            _in_a_fork(
                folder, f"{name}.emulated", lambda real=real: run_real(real, BUILTIN_MODELS[real.model].config).outcome
            )


def simulate(folder: Path) -> None:
    """Simulate every trial."""
    import profiler.worker_imports  # noqa: F401
    from profiler.domain.builtin_models import BUILTIN_MODELS
    from profiler.worker.simulated import run_simulated

    for name, spec in _trials(folder):
        _in_a_fork(
            folder, f"{name}.simulated", lambda spec=spec: run_simulated(spec, BUILTIN_MODELS[spec.model].config)
        )


def collect(folder: Path) -> None:
    """Write one row per trial and phase, and one for the whole trial."""
    rows = []
    for name, _ in _trials(folder):
        sides = [_read(folder, f"{name}.{side}") for side in ("emulated", "simulated")]
        if None in sides:
            continue
        for phase in ("all", *sides[0]["phases"]):
            peaks = [side["phases"].get(phase, (None, None)) if phase != "all" else side["peak"] for side in sides]
            row = {
                "trial": name,
                "phase": phase,
                "emulated_status": sides[0]["status"],
                "simulated_status": sides[1]["status"],
            }
            values = (peaks[0][0], peaks[1][0], peaks[0][1], peaks[1][1])
            rows.append(row | dict(zip(COLUMNS, values, strict=True)))
            if peaks[0] != peaks[1] or sides[0]["status"] != sides[1]["status"]:
                print(rows[-1])
    with (folder / "rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _trials(folder: Path) -> Iterator:
    from profiler.config.identity import spec_from_mapping

    for line in (folder / "trials.jsonl").read_text().splitlines():
        trial = json.loads(line)
        yield trial["name"], spec_from_mapping(trial["spec"])


def _in_a_fork(folder: Path, name: str, run) -> None:
    path = folder / "outcomes" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    if path.exists():
        return
    child = os.fork()
    if child == 0:
        try:
            path.write_text(json.dumps(_summary(run())))
        except BaseException:
            path.write_text(
                json.dumps({"status": "failed", "message": traceback.format_exc(), "peak": [None, None], "phases": {}})
            )
        os._exit(0)
    os.waitpid(child, 0)
    print(name, json.loads(path.read_text())["status"], flush=True)


def _summary(outcome) -> dict:
    phases = {peak.phase.value: (peak.peak_allocated_bytes, peak.peak_reserved_bytes) for peak in outcome.peaks.phases}
    peak = (outcome.peaks.allocated_bytes, outcome.peaks.reserved_bytes)
    return {"status": outcome.status.value, "message": outcome.message, "peak": peak, "phases": phases}


def _read(folder: Path, name: str) -> dict | None:
    path = folder / "outcomes" / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("sample", "emulate", "simulate", "collect"):
        sys.exit(__doc__)
    globals()[sys.argv[1]](Path(sys.argv[2]))
