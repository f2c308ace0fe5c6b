"""The order of trials by memory, on a fixed sample in the simulation."""

from functools import cache

import pytest
from matrix import with_further
from simulating import LORA, simulate, small_spec

from profiler.config.models.architecture import read_architecture
from profiler.config.trials.demand import needs_at_most
from profiler.domain.memory import Phase
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.trials.trial import Lengths, Tuning

CONFIG = {**BUILTIN_MODELS["tiny"].config, "num_hidden_layers": 4}
"""The order of checkpointing needs more than two layers."""

FULL = {"beta": 0.0, "gradient_accumulation_steps": 2, "steps_per_generation": 2, "max_completion_length": 16}
ADAPTERS = {**FULL, **LORA, "tuning": Tuning.LORA}

CHANGES = (
    {"max_prompt_length": 16},
    {"max_completion_length": 24},
    {"num_generations": 8},
    {"per_device_train_batch_size": 8},
    {"gradient_accumulation_steps": 4},
    {"steps": 3},
    {"beta": 0.04},
    {"gradient_checkpointing": False},
)


@cache
def peaks(keys):
    """The peak of each phase of a trial in the simulation."""
    found = {}
    for phase, level in simulate(model_config=CONFIG, **dict(keys)).levels():
        found[phase] = max(found.get(phase, 0), sum(level.values()))
    return found


def compare(smaller, larger):
    """Whether the first needs at most the second, and the phases in which its simulated peak is larger."""
    specs = [small_spec(**keys) for keys in (smaller, larger)]
    holds = needs_at_most(*specs, architecture_of=lambda model: read_architecture(CONFIG, model=model))
    one, other = (peaks(tuple(keys.items())) for keys in (smaller, larger))
    return holds, {phase for phase in one if one[phase] > other.get(phase, 0)}


@pytest.mark.slow
@pytest.mark.parametrize("change", with_further(CHANGES, CHANGES[1:4]), ids=lambda change: next(iter(change)))
def test_no_phase_of_a_larger_trial_needs_less(change):
    assert compare(FULL, {**FULL, **change}) == (True, set())


@pytest.mark.slow
def test_no_phase_of_a_trial_with_a_larger_rank_needs_less():
    assert compare(ADAPTERS, {**ADAPTERS, "lora_rank": 16}) == (True, set())


@pytest.mark.slow
@pytest.mark.matrix
def test_unaligned_micro_batches_need_more_than_a_larger_aligned_generation():
    unaligned = {**FULL, "gradient_accumulation_steps": 4, "steps_per_generation": 3, "lengths": Lengths.FORCED}
    holds, larger = compare(unaligned, {**unaligned, "steps_per_generation": 4})
    assert not holds
    assert Phase.SCORE in larger
