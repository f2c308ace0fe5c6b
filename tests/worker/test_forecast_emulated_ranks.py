"""Forecasts of two GPUs against two emulated ranks, whose messages are real. Skipped without torch's CUDA build."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from matrix import further
from test_forecast_engine import OF_ROWS, TINY, forecast_of, spec_of
from test_forecast_processes import FULL, LORA_KEYS, PAIRED, on_gpus

from maintenance.forecasts.running import PROGRAM
from profiler.analysis.forecast.lengths import RowCounts
from profiler.config.trials.identity import spec_to_mapping
from profiler.domain.runs.forecast import Death, Draw, ForecastStep
from profiler.domain.trials.trial import Backend, RowLengths, TrialSpec, Tuning
from profiler.simulation.extrapolation.parametric_steps import FIRST_STEPS
from profiler.worker.forecast_steps import Steps, learn, whole_steps, written_steps

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not os.environ.get("EMULATION_PYTHON"),
        reason="EMULATION_PYTHON names no Python with torch's CUDA build (python -m profiler.emulation install)",
    ),
]

STEPS = 6
CONFIG = TINY | {"num_hidden_layers": 1, "vocab_size": 151_936}
"""Logits are the largest blocks, as in a real model."""
BEFORE = PAIRED | {"tuning": Tuning.FULL, "precompute_ref_log_probs": True, "precompute_ref_batch_size": 6}


def sampled_rows(spec: TrialSpec) -> Draw:
    counts, random = RowCounts.of(spec, STEPS, spec.num_processes), Random(5)
    prompts = -(-counts.rows // counts.rows_per_prompt) if counts.rows_per_prompt else 0
    return Draw(
        seed=0,
        prompts=tuple(random.randint(1, min(30, spec.max_prompt_length)) for _ in range(prompts)),
        completions=tuple(random.randint(1, spec.longest) for _ in range(counts.rows)),
    )


def emulated(spec: TrialSpec, draw: Draw, folder: Path) -> list[list[dict[str, Any]]]:
    """Return the counters of each step of each rank."""
    request = {"spec": spec_to_mapping(replace(spec, backend=Backend.EMULATED)), "model_config": CONFIG}
    rows = {"prompts": draw.prompts, "completions": draw.completions, "shuffles": range_of(spec), "limit_bytes": None}
    (folder / "request.json").write_text(json.dumps(request | rows))
    count = spec.num_processes
    words = [
        "torchrun",
        f"--nproc_per_node={count}",
        str(PROGRAM),
        str(folder / "request.json"),
        str(folder / "answer"),
    ]
    options = [f"gpus={count}xh100-80gb", f"steps={STEPS + 1}", f"python={os.environ['EMULATION_PYTHON']}"]
    command = [sys.executable, "-m", "profiler.run", *options, f"results_dir={folder}", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    files = [folder / f"{rank}.answer" for rank in range(count)]
    assert all(file.exists() for file in files), done.stdout + done.stderr
    lines = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    return [[line for line in own if line["kind"] == "step"] for own in lines]


def range_of(spec: TrialSpec) -> list[int]:
    return [*range(spec.steps)]


@pytest.mark.parametrize(
    "spec",
    further(
        on_gpus(2, **FULL, steps=STEPS),
        on_gpus(2, **FULL, steps=STEPS, num_generations=16),
        on_gpus(2, **OF_ROWS, **LORA_KEYS, steps=STEPS),
        spec_of(**BEFORE, steps=STEPS),
    ),
    ids=lambda spec: f"{spec.recipe}-{spec.num_processes}-{spec.num_generations}",
)
def test_two_ranks_need_what_their_forecasts_say(spec: TrialSpec, tmp_path: Path) -> None:
    draw = sampled_rows(spec)
    each = [
        RowLengths(prompts=own.prompts, completions=own.completions, shuffles=range_of(spec))
        for own in draw.of_each(spec)
    ]
    learnt = learn(spec, CONFIG, each)

    def run_whole(own: RowLengths) -> Steps:
        return whole_steps(spec, CONFIG, own)

    def written_of(own: RowLengths) -> Steps:
        return written_steps(spec, learnt, own)

    for own, real in zip(each, emulated(spec, draw, tmp_path), strict=True):
        assert len(real) == STEPS
        whole, written = (forecast_of(steps(own)) for steps in (run_whole, written_of))
        assert [sizes_of(line) for line in whole] == [sizes_in(counters) for counters in real]
        if own is each[0]:
            assert written == whole
        # The first steps of all GPUs are written as those of the first one; the next one has what these leave, and the
        # cache of later ones too.
        later = [[sizes_of(line)[:2] for line in lines[FIRST_STEPS + 1 :]] for lines in (written, whole)]
        assert later[0] == later[1]


def sizes_of(line: ForecastStep | Death) -> tuple[int, ...]:
    assert isinstance(line, ForecastStep)
    return line.step, line.allocated_bytes, line.reserved_bytes, line.reserved_after_bytes


def sizes_in(counters: dict[str, Any]) -> tuple[int, ...]:
    return tuple(counters[name] for name in ("step", "allocated_bytes", "reserved_bytes", "reserved_after_bytes"))
