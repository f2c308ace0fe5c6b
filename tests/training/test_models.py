"""Models from their configuration: parameter counts, without a download."""

import psutil
import pytest
import torch

from profiler.config.models.lookup import builtin_architecture
from profiler.domain.models.builtin_models import BUILTIN_MODELS, find_builtin
from profiler.domain.trials.trial import Attention, Backend, DistributedType, TrialSpec, Tuning
from profiler.training.models.model import build_config, build_model, random_model
from profiler.training.models.parameter_count import parameter_counts
from profiler.training.placement import RealDevice

ADAPTED = {"lora_rank": 8, "lora_alpha": 16, "lora_target_modules": ("all-linear",)}


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


@pytest.mark.parametrize(
    ("keys", "is_trained", "device", "dtype"),
    [
        ({}, True, "meta", torch.bfloat16),
        ({"distributed_type": DistributedType.FSDP, "num_processes": 2}, True, "cpu", torch.float32),
        ({"distributed_type": DistributedType.FSDP, "num_processes": 2}, False, "cpu", torch.bfloat16),
        (
            {"distributed_type": DistributedType.FSDP, "num_processes": 2, "tuning": Tuning.LORA, **ADAPTED},
            True,
            "cpu",
            torch.bfloat16,
        ),
    ],
)
def test_with_fsdp_the_host_has_the_model(keys, is_trained, device, dtype):
    """accelerate widens what is trained on the host, and a reference is sharded as it is."""
    spec = TrialSpec(backend=Backend.EMULATED, gpu="h100-80gb", model="tiny", **keys)
    config = build_config(BUILTIN_MODELS["tiny"].config, name="tiny")
    built = random_model(spec, config, RealDevice(device=torch.device("meta")), is_trained=is_trained)
    assert {parameter.device.type for parameter in built.parameters()} == {device}
    assert {parameter.dtype for parameter in built.parameters()} == {dtype}
    assert built.get_input_embeddings().weight is built.get_output_embeddings().weight


def test_an_emulated_model_on_the_host_takes_no_memory_of_it():
    """A layer of 7B has 932 MB in float32; what no one writes to is no page of the process."""
    spec = TrialSpec(
        backend=Backend.EMULATED,
        gpu="h100-80gb",
        model="qwen2.5-7b",
        distributed_type=DistributedType.FSDP,
        num_processes=2,
    )
    config = build_config({**BUILTIN_MODELS["qwen2.5-7b"].config, "num_hidden_layers": 2}, name="qwen2.5-7b")
    before = psutil.Process().memory_info().rss
    built = random_model(spec, config, RealDevice(device=torch.device("meta")))
    assert built.dtype is torch.float32
    assert psutil.Process().memory_info().rss - before < 50 * 2**20
