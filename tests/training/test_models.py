"""Models from their configuration: parameter counts, without a download."""

import pytest
import torch

from profiler.config.models.lookup import builtin_architecture
from profiler.domain.models.builtin_models import BUILTIN_MODELS, find_builtin
from profiler.domain.trials.trial import Attention, Backend, TrialSpec
from profiler.training.models.model import build_config, build_model
from profiler.training.models.parameter_count import parameter_counts
from profiler.training.placement import RealDevice


def _attention(name: str) -> Attention:
    architecture = builtin_architecture(name)
    assert architecture is not None
    return Attention.SDPA if architecture.has_sdpa else Attention.EAGER


@pytest.mark.parametrize("name", BUILTIN_MODELS)
def test_built_in_models_have_the_parameters_that_are_stated(name: str) -> None:
    model = BUILTIN_MODELS[name]
    built = build_model(
        TrialSpec(backend=Backend.CPU, gpu=None, model=name, attn_implementation=_attention(name)),
        build_config(model.config, name=name),
        RealDevice(device=torch.device("meta")),
    )
    assert parameter_counts(built) == (model.parameters, model.parameters)
    assert built.dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("hub_id", "name"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("meta-llama/Llama-3.2-1B", "llama-3.2-1b"),
        ("Qwen/Qwen3-14B", "qwen3-14b"),
        ("TINY", "tiny"),
    ],
)
def test_hub_ids_resolve_without_a_network(hub_id: str, name: str) -> None:
    found = find_builtin(hub_id)
    assert found is not None
    assert found.name == name
