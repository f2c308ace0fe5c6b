"""A simulated trial with vLLM: blocks by its accounting, awake and asleep, next to the closed form."""

from collections import defaultdict

import pytest
from simulating import LORA, simulate, small_spec

from profiler.analytical.estimate import phase_instants
from profiler.analytical.formulas.vllm_memory import vllm_memory
from profiler.config.models.lookup import builtin_architecture
from profiler.domain.memory import Category, Phase
from profiler.domain.trials.trial import Tuning, VllmMode, run_key

VLLM = {"use_vllm": True, "vllm_mode": VllmMode.COLOCATE, "vllm_gpu_memory_utilization": 0.3, "steps": 1}
ARCHITECTURE = builtin_architecture("tiny")
PARTS = vllm_memory(small_spec(**VLLM), ARCHITECTURE)


def engine_by_phase(simulated):
    """Return the largest size of the engine's blocks in each phase."""
    found = defaultdict(int)
    for phase, level in simulated.levels():
        found[phase] = max(found[phase], level[Category.ENGINE])
    return found


@pytest.mark.parametrize(
    ("sleeps", "tuning"), [(False, {}), (True, {"tuning": Tuning.LORA, **LORA})], ids=["awake", "asleep and LoRA"]
)
def test_the_blocks_are_the_parts_of_the_closed_form(sleeps, tuning):
    keys = {**VLLM, "vllm_enable_sleep_mode": sleeps, **tuning}
    simulated = simulate(**keys)
    found = engine_by_phase(simulated)
    assert found[Phase.ROLLOUT] == pytest.approx(int(PARTS.total), abs=4 * 512)
    resident = PARTS.buffers if sleeps else PARTS.resident
    assert found[Phase.BACKWARD] == pytest.approx(int(resident), abs=4 * 512)
    totals = defaultdict(int)
    for phase, level in simulated.levels():
        totals[phase] = max(totals[phase], sum(level.values()))
    for phase, instant in phase_instants(small_spec(**keys), ARCHITECTURE).items():
        assert totals[phase] == pytest.approx(int(instant.total_bytes), rel=0.005), phase


def test_no_other_card_has_the_results_of_a_trial_with_vllm():
    assert run_key(small_spec()) is not None
    assert run_key(small_spec(**VLLM)) is None
