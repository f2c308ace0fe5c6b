"""How many simulations a search takes, and in how many rounds, for jobs whose simulations are recorded."""

import json
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from profiler.domain.errors import EXIT_OK
from profiler.domain.memory import GIB
from profiler.domain.runs.outcome import Status
from profiler.domain.trials.trial import TrialSpec
from profiler.rendering.answers.solve import SimulatedSide
from profiler.solve.main import main
from profiler.solve.search import PRECISION

RECORDED = {
    # By the estimate none fits.
    "max_completion_length model=llama-3.1-70b tuning=lora gpu=h200": (
        241, 5, [(1, 137.825), (26, 137.858), (91, 138.280), (152, 138.640), (212, 139.140), (241, 139.548),
                 (270, 140.059), (348, 140.522)],
    ),
    "max_completion_length model=qwen2.5-7b tuning=lora gpu=rtx-4090-24gb": (
        2_917, 5, [(2_604, 22.48), (2_868, 23.06), (2_917, 23.16), (2_927, 23.33), (3_022, 23.40), (3_074, 23.49),
                  (3_148, 23.60), (3_192, 23.88), (3_225, 23.80)],
    ),
    "max_completion_length model=qwen2.5-7b gpu=h100-80gb": (
        7_641, 5, [(7_205, 79.59), (7_448, 80.59), (7_641, 82.20), (7_670, 81.35), (7_699, 81.58), (7_728, 81.65)],
    ),
    "max_length recipe=sft model=qwen2.5-7b gpu=h100-80gb": (
        7_788, 2, [(7_489, 78.11), (7_573, 77.01), (7_704, 78.45), (7_788, 78.95), (7_824, 80.05), (7_908, 79.71),
                   (8_078, 80.62), (8_162, 79.68), (9_032, 82.60), (9_134, 83.01)],
    ),
    "max_length recipe=dpo model=qwen2.5-7b tuning=lora gpu=h100-80gb max_prompt_length=512": (
        12_264, 2, [(12_031, 77.70), (12_169, 78.46), (12_264, 78.99), (12_356, 79.48), (12_675, 81.24),
                    (12_819, 82.04)],
    ),
    "per_device_train_batch_size recipe=dpo model=llama-3.2-3b tuning=lora gpu=a100-40gb": (
        35, 2, [(35, 38.83), (36, 39.73), (38, 41.56), (39, 42.47)],
    ),
    "per_device_train_batch_size recipe=sft model=qwen2.5-7b tuning=qlora gpu=rtx-4090-24gb": (
        32, 1, [(32, 23.52), (33, 24.08), (34, 24.60), (35, 25.17)],
    ),
}  # fmt: skip
"""By job: the largest value that fits, the most rounds, and what simulations of some values need in GiB."""


@pytest.mark.parametrize("job", RECORDED)
def test_recorded_jobs_take_few_rounds_of_two_simulations(job, capsys, monkeypatch):
    monkeypatch.setattr("profiler.solve.main.usable_cores", lambda: 2)
    largest, most, recorded = RECORDED[job]
    values, needed = zip(*recorded, strict=True)
    rounds: list[list[int]] = []

    def simulate(specs: Mapping[int, TrialSpec]) -> Sequence[SimulatedSide]:
        rounds.append(list(specs))
        return [
            SimulatedSide(
                value=value,
                status=Status.OK if value <= largest else Status.OOM,
                needed_bytes=int(np.interp(value, values, needed) * GIB),
                message="",
            )
            for value in specs
        ]

    assert main([*job.split(), "format=json"], simulate=simulate) == EXIT_OK

    (answer,) = json.loads(capsys.readouterr().out)["answers"]
    assert answer["largest"] <= largest < answer["beyond"]
    assert answer["beyond"] - answer["largest"] <= max(1, PRECISION * largest)
    assert {answer["largest"], answer["beyond"]} <= {value for each in rounds for value in each}
    assert len(rounds) <= most
    assert all(1 <= len(each) <= 2 for each in rounds)
