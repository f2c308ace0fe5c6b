import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.analytical import lora_parameter_count, parameter_count
from profiler.analytical.formulas.models.parameters import projections
from profiler.config.models.architecture import read_architecture
from profiler.domain.models.builtin_models import BUILTIN_MODELS, BuiltinModel
from profiler.domain.trials.trial import ALL_LINEAR


@pytest.mark.parametrize("model", BUILTIN_MODELS.values(), ids=lambda model: model.name)
def test_the_count_of_every_builtin_model_is_exact(model: BuiltinModel):
    assert parameter_count(read_architecture(model.config, model=model.name)) == model.parameters


@given(rank=st.integers(1, 256), name=st.sampled_from(["q_proj", "k_proj", "o_proj", "gate_proj", "down_proj"]))
def test_lora_is_proportional_to_its_rank(half_billion, rank, name):
    assert lora_parameter_count(half_billion, rank, (name,)) == rank * lora_parameter_count(half_billion, 1, (name,))


def test_all_linear_is_the_sum_of_its_parts(half_billion):
    parts = [lora_parameter_count(half_billion, 8, (part.name,)) for part in projections(half_billion)]

    assert lora_parameter_count(half_billion, 8, (ALL_LINEAR,)) == sum(parts)
